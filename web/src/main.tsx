import { render } from "preact";
import { App } from "./frame/App";
import "./styles.css";

render(<App />, document.getElementById("page")!);
