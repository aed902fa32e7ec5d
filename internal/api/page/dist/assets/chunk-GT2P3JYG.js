import{m as r,p as n}from"./chunk-4Q3WHQOQ.js";function f(o){return n("a",{...o,onClick:t=>{t.button||t.metaKey||t.ctrlKey||t.shiftKey||t.altKey||(t.preventDefault(),r(o.href))}})}export{f as a};
