// Preferences concern the person, not what is shown, so they are kept in the browser and not in the address.
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Theme } from "./theme/theme";
import type { Zone } from "./time";

export interface Preferences {
  theme: Theme;
  dark: boolean;
  zone: Zone;
}

export const PreferencesContext = createContext<Preferences>({ theme: "system", dark: false, zone: "local" });

export const usePreferences = (): Preferences => useContext(PreferencesContext);
