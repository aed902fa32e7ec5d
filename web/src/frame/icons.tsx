import type { ComponentChildren } from "preact";

const Icon = ({ children }: { children: ComponentChildren }) => (
  <svg class="i" viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">{children}</svg>
);

/** Mark is a millstone from above. */
export const Mark = () => (
  <svg class="mark" viewBox="0 0 24 24" width="22" height="22" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" aria-hidden="true">
    <circle cx="12" cy="12" r="9.2" /><circle cx="12" cy="12" r="2" fill="currentColor" stroke="none" /><path d="M12 7V2.8M16.4 14.5l3.6 2.1M7.6 14.5L4 16.6" />
  </svg>
);
export const Sun = () => <Icon><circle cx="8" cy="8" r="3" /><path d="M8 1.5v1.4M8 13.1v1.4M1.5 8h1.4M13.1 8h1.4M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1" /></Icon>;
export const Moon = () => <Icon><path d="M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8z" /></Icon>;
export const System = () => <Icon><circle cx="8" cy="8" r="5.6" /><path d="M8 2.4a5.6 5.6 0 0 1 0 11.2z" fill="currentColor" /></Icon>;
export const Help = () => <Icon><rect x="1.5" y="4" width="13" height="8.5" rx="1.5" /><path d="M4 6.7h.01M6.6 6.7h.01M9.3 6.7h.01M12 6.7h.01M5 9.8h6" /></Icon>;
export const Clock = () => <Icon><circle cx="8" cy="8" r="6" /><path d="M8 4.6V8l2.2 1.6" /></Icon>;
export const Plus = () => <Icon><path d="M8 3.2v9.6M3.2 8h9.6" /></Icon>;
export const Cross = () => <Icon><path d="M4.2 4.2l7.6 7.6M11.8 4.2l-7.6 7.6" /></Icon>;
export const Back = () => <Icon><path d="M6.4 3.6L2.6 7.2l3.8 3.6M3 7.2h6.4a3.6 3.6 0 0 1 0 7.2H7" transform="translate(0 -1)" /></Icon>;
export const Left = () => <Icon><path d="M10 3.4L5.4 8l4.6 4.6" /></Icon>;
export const Right = () => <Icon><path d="M6 3.4L10.6 8 6 12.6" /></Icon>;
export const ZoomOut = () => <Icon><circle cx="7" cy="7" r="4.6" /><path d="M10.5 10.5L14 14M5 7h4" /></Icon>;
export const Refresh = () => <Icon><path d="M13.2 8A5.2 5.2 0 1 1 11.5 4.2L13.4 6M13.4 2.8V6h-3.2" /></Icon>;
export const Eye = () => <Icon><path d="M1.6 8S4 3.8 8 3.8 14.4 8 14.4 8 12 12.2 8 12.2 1.6 8 1.6 8z" /><circle cx="8" cy="8" r="1.9" /></Icon>;
export const EyeOff = () => <Icon><path d="M3 3l10 10M6.2 4.1A6.5 6.5 0 0 1 8 3.8C12 3.8 14.4 8 14.4 8a12 12 0 0 1-1.9 2.3M4.2 5.3A11 11 0 0 0 1.6 8S4 12.2 8 12.2a6.3 6.3 0 0 0 2.9-.7" /></Icon>;
export const Flag = () => <Icon><path d="M4 14V2.6M4 3h8l-2 2.8 2 2.8H4" /></Icon>;
export const Down = () => <Icon><path d="M8 2.8v7.4M4.8 7.4L8 10.6l3.2-3.2M3 13.2h10" /></Icon>;
export const Trash = () => <Icon><path d="M2.8 4.4h10.4M6.2 4.2V2.6h3.6v1.6M4.2 4.6l.6 8.8h6.4l.6-8.8M6.7 7v4M9.3 7v4" /></Icon>;
