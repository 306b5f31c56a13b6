// Long lists: only the visible rows are in the page.

const ROW = 28;

class Rows {
  // `draw` makes the element of an item.
  constructor(panel, draw) {
    this.panel = panel;
    this.draw = draw;
    this.items = [];
    this.box = element("div", "rows");
  }

  set(items) {
    this.items = items;
    this.box.style.height = `${items.length * ROW}px`;
    this.paint();
  }

  paint() {
    if (!this.box.isConnected) return;
    const { scrollTop, clientHeight } = this.panel;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - 5);
    const last = Math.min(this.items.length, Math.ceil((scrollTop + clientHeight) / ROW) + 5);
    const made = [];
    for (let i = first; i < last; i += 1) {
      const row = this.draw(this.items[i]);
      row.style.top = `${i * ROW}px`;
      made.push(row);
    }
    this.box.replaceChildren(...made);
  }

  reveal(index) {
    const { scrollTop, clientHeight } = this.panel;
    const y = index * ROW;
    if (y < scrollTop || y + ROW > scrollTop + clientHeight) {
      this.panel.scrollTop = Math.max(0, y - clientHeight / 3);
    }
    this.paint();
  }
}

// The views of the tree that are in open modules, from the top down.
function openViews(views, into = []) {
  for (const view of views) {
    into.push(view);
    if (view.isOpen && view.children) openViews(view.children, into);
  }
  return into;
}

// Where words are in a text: starts and ends that do not overlap.
function places(text, words) {
  const lower = text.toLowerCase();
  const found = [];
  let from = 0;
  // Some letters have another length in lower case. Then no place is right.
  while (lower.length === text.length) {
    const hits = words.map((word) => [lower.indexOf(word, from), word]).filter(([i]) => i >= 0);
    if (hits.length === 0) break;
    const [start, word] = hits.reduce((a, b) => (b[0] < a[0] ? b : a));
    from = start + word.length;
    found.push([start, from]);
  }
  return found;
}

// Part of a text, with marks at these places.
function marked(text, from, to, found) {
  const pieces = [];
  let at = from;
  for (const [start, end] of found) {
    if (end <= at || start >= to) continue;
    const first = Math.max(start, at);
    const last = Math.min(end, to);
    pieces.push(text.slice(at, first), element("mark", "", text.slice(first, last)));
    at = last;
  }
  pieces.push(text.slice(at, to));
  return pieces;
}

// A row of the tree.
function treeRow(view, by, isChosen) {
  const row = element("div", isChosen ? "row chosen" : "row");
  row.style.paddingLeft = `${8 + Math.min(view.depth, 20) * 16}px`;
  const arrow = view.children ? (view.isOpen ? "▼" : "▶") : "";
  const label = element("span", "label", view.label);
  label.title = view.path;
  const hasColour = view.node.kind || (by === "module" && view.node.group >= 0);
  const swatch = element("span", hasColour ? `swatch ${paint(view, by)}` : "swatch");
  row.append(element("span", "fold", arrow), swatch, label);
  if (view.copies > 1) row.append(element("span", "times", `×${count(view.copies)}`));
  row.append(element("span", "kind", view.node.kind ? kindOf(view.node) : ""));
  row.append(element("span", "size", size(view.node.bytes * view.times)));
  return row;
}

// A row of the results of a search.
function resultRow(tensor, words, by, isChosen) {
  const row = element("div", isChosen ? "row chosen" : "row");
  const { path } = tensor;
  // Where there is little room, the start of the name is shortened, not the end.
  const tail = path.split(data.separator).slice(-2).join(data.separator);
  const middle = path.length - tail.length;
  const found = places(path, words);
  const kind = kindOf(tensor);
  row.title = path;
  row.append(element("span", `swatch ${paint(tensor.view, by)}`));
  row.append(element("span", "label head", ...marked(path, 0, middle, found)));
  row.append(element("span", "label tail", ...marked(path, middle, path.length, found)));
  row.append(element("span", "kind", ...marked(kind, 0, kind.length, places(kind, words))));
  row.append(element("span", "size", size(tensor.bytes)));
  return row;
}

function kindOf(tensor) {
  return `${data.dtypes[tensor.kind.dtype][0]} ${tensor.kind.shape}`;
}
