import { kept, keep } from "../kept";

/** What a person chose: the theme of the system, or one of the two. */
export type Theme = "system" | "light" | "dark";

const themes: Theme[] = ["system", "light", "dark"];

export const chosenTheme = (): Theme => themes.find((t) => t === kept("theme")) ?? "system";

export function applyTheme(theme: Theme): void {
  const root = document.documentElement;
  if (theme === "system") delete root.dataset["theme"];
  else root.dataset["theme"] = theme;
}

export function chooseTheme(theme: Theme): void {
  keep("theme", theme);
  applyTheme(theme);
}

export const nextTheme = (theme: Theme): Theme => themes[(themes.indexOf(theme) + 1) % themes.length]!;

const system = matchMedia("(prefers-color-scheme: dark)");

export const isDark = (theme: Theme): boolean => (theme === "system" ? system.matches : theme === "dark");

/** onSystemTheme calls back when the system's theme changes, until the returned function is called. */
export function onSystemTheme(changed: () => void): () => void {
  system.addEventListener("change", changed);
  return () => system.removeEventListener("change", changed);
}
