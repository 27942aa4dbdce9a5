// Elements out of values. Text is text: nothing here makes markup of a string, and the page's policy forbids it.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = Symbol("handlers");

/**
 * Makes an element. `attributes` by their names; `onclick` and the like are listeners, true is an attribute without a
 * value, and null, undefined and false are none. Children are nodes, texts, numbers, or lists of them; null is none.
 */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Makes an element of a drawing. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      listen(node, name.slice(2), value);
    } else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return node;
}

// A listener is looked up when the event comes: so an element that stays can be given that of the one it stands for.
function listen(node, type, handler) {
  node[HANDLERS] ??= {};
  if (!(type in node[HANDLERS])) {
    node.addEventListener(type, (event) => node[HANDLERS][type]?.(event));
  }
  node[HANDLERS][type] = handler;
}

/**
 * Has a container show these nodes, and keeps of what it shows all that is the same: focus, selection, scroll positions
 * and what somebody types stay. Children with a `data-key` are told apart by it, others by their place.
 */
export function show(container, ...nodes) {
  const wanted = document.createDocumentFragment();
  wanted.append(...nodes.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
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
    let standing = key === undefined ? place : keyed.get(key);
    keyed.delete(key); // another child with this key is another one
    if (key === undefined && standing?.dataset?.key !== undefined) standing = null;
    if (!standing || !isAlike(standing, next)) {
      old.insertBefore(next, place);
      continue;
    }
    if (standing === place) place = place.nextSibling;
    else old.insertBefore(standing, place);
    match(standing, next);
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

function match(old, wanted) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    // Whether something is open is up to whoever looks at it.
    if (!wanted.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const [type, handler] of Object.entries(wanted[HANDLERS] ?? {})) listen(old, type, handler);
  if (old.hasAttribute("data-kept")) return; // what its page fills by itself
  matchChildren(old, wanted);
}
