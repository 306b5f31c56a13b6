// The JSON as a tree of nodes, and the views that the page shows: a view is a node, or several
// nodes that differ only in the number at the start of their labels.

const data = JSON.parse(document.getElementById("data").textContent);

// All tensors, in the order of their names.
const tensors = [];

// Equal structures have equal numbers.
const structures = new Map();

function structure(text) {
  if (!structures.has(text)) structures.set(text, structures.size);
  return structures.get(text);
}

function grow(raw, parent) {
  const [label, content] = raw;
  const own = raw[raw.length - 1];
  const node = {
    label,
    path: parent ? parent.path + data.separator + label : label,
    group: own < 0 && parent ? parent.group : own,
    children: null,
    kind: null,
    view: null,
  };
  if (Array.isArray(content)) {
    node.children = content.map((child) => grow(child, node));
    Object.assign(node, { tensors: 0, parameters: 0, bytes: 0 });
    for (const child of node.children) {
      node.tensors += child.tensors;
      node.parameters += child.parameters;
      node.bytes += child.bytes;
    }
    const inside = node.children.map(({ label, like }) => `${label.length}:${label}${like}`);
    node.like = structure(`module ${inside.join()}`);
  } else {
    const [dtype, shape, parameters, bytes] = data.kinds[content];
    Object.assign(node, { kind: { dtype, shape }, file: raw[2], tensors: 1, parameters, bytes });
    node.like = structure(`tensor ${content}`);
    tensors.push(node);
  }
  return node;
}

// The number that a label starts with, as `safetensors inspect` folds layers.
function leadingNumber(label) {
  const end = label.indexOf(data.separator);
  const part = end < 0 ? label : label.slice(0, end);
  return /^(0|[1-9][0-9]{0,14})$/.test(part) ? part : null;
}

// Ascending numbers as ranges: `0…2, 5, 7…9`.
function ranges(numbers) {
  const runs = [];
  for (const number of numbers) {
    const last = runs[runs.length - 1];
    if (last && last[1] + 1 === number) last[1] = number;
    else runs.push([number, number]);
  }
  const shown = runs.slice(0, 6).map(([from, to]) => (from === to ? `${from}` : `${from}…${to}`));
  return shown.concat(runs.length > 6 ? ["…"] : []).join(", ");
}

function fold(nodes, parent) {
  const found = new Map();
  const views = [];
  for (const node of nodes) {
    const number = leadingNumber(node.label);
    const rest = number === null ? "" : node.label.slice(number.length);
    const key = `${node.like} ${rest}`;
    const same = number === null ? undefined : found.get(key);
    if (same) {
      same.members.push(node);
      same.numbers.push(Number(number));
      continue;
    }
    const view = { node, parent, rest, members: [node], numbers: [Number(number)], isOpen: false };
    if (number !== null) found.set(key, view);
    views.push(view);
  }
  for (const view of views) {
    const { node, members } = view;
    view.copies = members.length;
    view.times = parent.times * view.copies;
    view.label = view.copies > 1 ? ranges(view.numbers) + view.rest : node.label;
    view.path = parent.parent ? parent.path + data.separator + view.label : view.label;
    view.depth = parent.depth + 1;
    view.bytes = node.bytes * view.copies;
    view.children = node.children ? fold(node.children, view) : null;
    view.leaves = view.children ? view.children.reduce((sum, child) => sum + child.leaves, 0) : 1;
    for (const member of members) show(member, node, view);
  }
  return views;
}

// Tells a member of a view, and everything in it, which views show them.
function show(member, first, view) {
  member.view = view;
  if (member === first || !member.children) return;
  member.children.forEach((child, i) => show(child, first.children[i], first.children[i].view));
}

const top = data.tree.map((raw) => grow(raw, null));
data.tree = null;

const root = {
  node: { children: top, group: -1, tensors: data.tensors, bytes: data.bytes },
  label: data.title,
  path: "",
  parent: null,
  copies: 1,
  times: 1,
  depth: -1,
  bytes: data.bytes,
  isOpen: true,
};
root.children = fold(top, root);
root.leaves = root.children.reduce((sum, child) => sum + child.leaves, 0);

// Numbers as the command writes them.
const count = (number) => number.toLocaleString("en-US", { maximumFractionDigits: 0 });

const counted = (number, thing) => `${count(number)} ${thing}${number === 1 ? "" : "s"}`;

function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB", "TB", "PB", "EB"];
  let unit = -1;
  let value = bytes;
  do {
    value /= 1000;
    unit += 1;
  } while (Math.round(value * 10) >= 10000 && unit + 1 < units.length);
  return `${value.toFixed(1)} ${units[unit]}`;
}

function share(bytes) {
  const percent = data.bytes > 0 ? (bytes / data.bytes) * 100 : 0;
  return percent > 0 && percent < 0.1 ? "under 0.1%" : `${percent.toFixed(1)}%`;
}

// An element with classes and text. Text from files is only ever set as text.
function element(tag, classes, ...content) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  made.append(...content);
  return made;
}
