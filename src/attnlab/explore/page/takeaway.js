// Take it away: text to the clipboard, files to the disk. Pictures hold all they need, and load nothing.

import { html, svg } from "./drawing.js";

const SHARPNESS = 2; // pixels of a PNG for one of the screen

/** Hand a file to the reader. */
export function download(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = html("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** The bytes of base64 text. */
export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

/** A picture as a file, "svg" or "png". */
export async function downloadPicture(kind, picture, themed, caption) {
  const text = svgText(picture, themed, caption);
  if (kind === "svg") download("explorer.svg", text, "image/svg+xml");
  else download("explorer.png", await pngOf(text), "image/png");
}

/** Copy a program, and show it: the browser may not allow copying. */
export async function showCode(place, text) {
  const done = await copied(text);
  const close = html("button", { type: "button", "data-action": "close-code", click: () => place.replaceChildren() }, "close");
  const area = html("textarea", { readonly: true, "data-python": "", "aria-label": "Python", spellcheck: "false" }, text);
  place.replaceChildren(html("div", { class: "row" }, html("span", { class: "soft" }, done ? "copied:" : "select and copy:"), close), area);
  if (!done) area.select();
}

/** Copy text; false where the browser does not allow it. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** A picture as the text of an SVG file, with colours in place of names, a background and a line of words. */
function svgText(picture, themed, caption) {
  const copy = picture.cloneNode(true);
  const [width, height] = [Number(picture.getAttribute("width")), Number(picture.getAttribute("height"))];
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("font-family", "system-ui, sans-serif");
  copy.setAttribute("viewBox", `0 0 ${width} ${height + 24}`);
  copy.setAttribute("height", height + 24);
  copy.prepend(svg("rect", { width, height: height + 24, fill: "var(--paper)" }));
  copy.append(svg("text", { x: 6, y: height + 16, "font-size": 11, fill: "var(--ink)" }, caption));
  for (const element of copy.querySelectorAll("[tabindex], [role], [aria-label], [class]")) for (const name of ["tabindex", "role", "aria-label", "class"]) element.removeAttribute(name);
  const colours = getComputedStyle(themed);
  return new XMLSerializer().serializeToString(copy).replace(/var\((--[\w-]+)\)/g, (_, name) => colours.getPropertyValue(name).trim());
}

/** The same as a PNG. */
async function pngOf(text) {
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = html("canvas", { width: image.width * SHARPNESS, height: image.height * SHARPNESS });
    const context = canvas.getContext("2d");
    context.scale(SHARPNESS, SHARPNESS);
    context.drawImage(image, 0, 0);
    return await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}
