// Creates elements from values. Strings become text nodes, never markup, which the page's security policy forbids.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = Symbol("handlers");

/**
 * Creates an element. `attributes` are keyed by name: functions such as `onclick` become listeners, true an attribute
 * without a value; null, undefined and false are left out. Children are nodes, texts, numbers, lists of these, or null.
 */
export function el(name, attributes = {}, ...children) {
  return fillElement(document.createElement(name), attributes, children);
}

/** Creates an SVG element, like `el`. */
export function svg(name, attributes = {}, ...children) {
  return fillElement(document.createElementNS(SVG, name), attributes, children);
}

function fillElement(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      listen(node, name.slice(2), value);
    } else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// The handler is looked up when an event arrives, so that an element that stays on the page can get a new handler.
function listen(node, type, handler) {
  node[HANDLERS] ??= {};
  if (!(type in node[HANDLERS])) {
    node.addEventListener(type, (event) => node[HANDLERS][type]?.(event));
  }
  node[HANDLERS][type] = handler;
}

/**
 * Makes a container show these nodes, and keeps its unchanged elements, so that focus, selection, scroll positions and
 * typed text stay. Children with a `data-key` are matched by this key, other children by their position.
 */
export function show(container, ...nodes) {
  const wanted = document.createDocumentFragment();
  wanted.append(...nodes.flat(Infinity).filter((node) => node !== null && node !== undefined && node !== false));
  matchChildren(container, wanted);
}

function matchChildren(old, wanted) {
  const keyed = new Map();
  for (const child of old.children) {
    if (child.dataset?.key !== undefined) keyed.set(child.dataset.key, child);
  }
  let place = old.firstChild;
  for (const next of [...wanted.childNodes]) {
    const key = next.dataset?.key;
    let existing = key === undefined ? place : keyed.get(key);
    keyed.delete(key); // a second child with the same key is a new element
    if (key === undefined && existing?.dataset?.key !== undefined) existing = null;
    if (!existing || !isAlike(existing, next)) {
      old.insertBefore(next, place);
      continue;
    }
    if (existing === place) place = place.nextSibling;
    else old.insertBefore(existing, place);
    matchNode(existing, next);
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

function isAlike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && one.dataset?.key === other.dataset?.key;
}

function matchNode(old, wanted) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    // The attribute `open` stays, because the user opens and closes elements.
    if (!wanted.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const [type, handler] of Object.entries(wanted[HANDLERS] ?? {})) listen(old, type, handler);
  matchChildren(old, wanted);
}
