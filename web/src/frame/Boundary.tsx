import { Component, type ComponentChildren } from "preact";

/** Boundary shows what went wrong in a view, and leaves the rest of the page as it is. */
export class Boundary extends Component<{ children: ComponentChildren }, { failed?: string }> {
  override state: { failed?: string } = {};

  static override getDerivedStateFromError(err: unknown) {
    return { failed: err instanceof Error ? err.message : String(err) };
  }

  override render() {
    if (this.state.failed === undefined) return this.props.children;
    return (
      <section class="empty" role="alert">
        <h1>This view has failed</h1>
        <p>That is a mistake in the page, not in what is stored. The browser says:</p>
        <pre>{this.state.failed}</pre>
        <p><button type="button" onClick={() => location.reload()}>Load the page again</button></p>
      </section>
    );
  }
}
