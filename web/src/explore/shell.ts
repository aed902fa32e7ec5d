/** formDataText writes a form for curl, so that no shell takes a part of a value for its own. */
export const formDataText = (form: [string, string][]): string => form.map(([name, value]) => ` \\\n  --data-urlencode '${`${name}=${value}`.replace(/'/g, "'\\''")}'`).join("");
