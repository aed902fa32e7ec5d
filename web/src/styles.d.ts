declare module "*.css";

/** A sheet is taken as a text by what it is for, and is not part of the first view. */
declare module "*.sheet.css" {
  const text: string;
  export default text;
}
