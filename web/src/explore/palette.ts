// Eight colours that people with any colour vision tell apart, in both themes. Beyond them the dashes differ.
const light = ["#0b6fb8", "#c8501e", "#0a8461", "#a8498f", "#80660a", "#4b45b5", "#b2304c", "#3b7a8c"];
const dark = ["#5ab1f2", "#f5945c", "#3fcf9f", "#e28ccb", "#e0c04a", "#9f99f5", "#f27d93", "#7cc4d6"];
const dashes: number[][] = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

export const colourOf = (n: number, isDark: boolean): string => (isDark ? dark : light)[n % light.length]!;

export const dashOf = (n: number): number[] => dashes[Math.floor(n / light.length) % dashes.length]!;
