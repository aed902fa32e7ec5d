// What a person prefers is kept in the browser. A browser that refuses to keep anything still shows the page.

const prefix = "quern.";

export function kept(name: string): string | null {
  try {
    return localStorage.getItem(prefix + name);
  } catch {
    return null;
  }
}

export function keep(name: string, value: string): void {
  try {
    localStorage.setItem(prefix + name, value);
  } catch {
    // It holds until the page is left.
  }
}
