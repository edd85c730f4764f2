// Elements without markup strings: whatever a view holds reaches the page as text only.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Sets the text only where it differs, so that selections and screen readers are left in peace. */
export function text(element, value) {
  if (element.textContent === value) return false;
  element.textContent = value;
  return true;
}

/** Makes the children of `parent` be exactly `wanted`, moving as few as possible. */
export function arrange(parent, wanted) {
  let here = parent.firstElementChild;
  for (const element of wanted) {
    if (element === here) here = here.nextElementSibling;
    else parent.insertBefore(element, here);
  }
  while (here) {
    const next = here.nextElementSibling;
    here.remove();
    here = next;
  }
}
