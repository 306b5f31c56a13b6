// The map: where each module and tensor is drawn, and how.

// About the most rectangles that are drawn at once. The smallest siblings share one.
const MOST = 1500;

const STRIP = 19;

// The squarified treemap of Bruls, Huizing and van Wijk: a rectangle for each weight. The weights
// are in descending order.
function squarify(weights, box) {
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const scale = total > 0 ? (box.w * box.h) / total : 0;
  let { x, y, w, h } = box;
  const placed = [];
  let at = 0;
  while (at < weights.length) {
    const side = Math.min(w, h);
    let end = at;
    let sum = 0;
    let worst = Infinity;
    while (end < weights.length) {
      const grown = sum + weights[end] * scale;
      const ratio = Math.max(
        (side * side * weights[at] * scale) / (grown * grown),
        (grown * grown) / (side * side * weights[end] * scale),
      );
      if (end > at && ratio > worst) break;
      worst = ratio;
      sum = grown;
      end += 1;
    }
    const depth = side > 0 ? sum / side : 0;
    let along = 0;
    for (; at < end; at += 1) {
      const length = sum > 0 ? (side * weights[at] * scale) / sum : 0;
      placed.push(
        w < h ? { x: x + along, y, w: length, h: depth } : { x, y: y + along, w: depth, h: length },
      );
      along += length;
    }
    if (w < h) [y, h] = [y + depth, Math.max(0, h - depth)];
    else [x, w] = [x + depth, Math.max(0, w - depth)];
  }
  return placed;
}

// The rectangles of what is in a view, frames before their content.
function layout(view, width, height, by) {
  const smallest = view.leaves > MOST ? (width * height) / MOST : 8;
  const placed = [];
  const inside = (parent, box) => {
    const children = (parent.children || [parent]).filter((child) => child.bytes > 0);
    children.sort((a, b) => b.bytes - a.bytes);
    const total = children.reduce((sum, child) => sum + child.bytes, 0);
    const isLarge = (child) => (child.bytes / total) * box.w * box.h >= smallest;
    const shown = children.filter(isLarge);
    const small = children.slice(shown.length);
    // Small ones of the same colour share a rectangle.
    const rests = new Map();
    for (const child of small) {
      const colour = paint(child, by);
      if (!rests.has(colour)) rests.set(colour, { colour, bytes: 0, small: [] });
      rests.get(colour).bytes += child.bytes;
      rests.get(colour).small.push(child);
    }
    const parts = [...shown, ...rests.values()].sort((a, b) => b.bytes - a.bytes);
    squarify(parts.map((part) => part.bytes), box).forEach((own, i) => {
      const { small: rest, colour } = parts[i];
      const label = rest && `${count(rest.length)} small`;
      if (rest) placed.push({ view: parent, box: own, label, small: rest, colour });
      else draw(parts[i], own);
    });
  };
  const draw = (child, box) => {
    // A module that one part fills nearly whole is drawn as that part.
    let shown = child;
    let { label } = child;
    while (shown.children) {
      const largest = shown.children.reduce((a, b) => (b.bytes > a.bytes ? b : a));
      if ((1 - largest.bytes / shown.node.bytes) * box.w * box.h > 40) break;
      shown = largest;
      label += data.separator + shown.label;
    }
    const hasRoom = box.w > 14 && box.h > 14;
    if (!shown.children || !hasRoom) {
      placed.push({ view: shown, box, label });
      return;
    }
    const hasLabel = box.h > 2.6 * STRIP && box.w > 40;
    placed.push({ view: shown, box, label, isFrame: true, hasLabel });
    const top = hasLabel ? STRIP : 3;
    inside(shown, { x: box.x + 3, y: box.y + top, w: box.w - 6, h: box.h - top - 3 });
  };
  inside(view, { x: 0, y: 0, w: width, h: height });
  return placed;
}

// The class that gives a view its colour.
function paint(view, by) {
  if (by === "module") return view.node.group < 0 ? "paint" : `paint g${view.node.group}`;
  let { node } = view;
  while (node.children) node = node.children.reduce((a, b) => (b.bytes > a.bytes ? b : a));
  return `paint d${node.kind.dtype}`;
}

// Draws the map of a view into a box. Returns what each element shows: a view, and how many small
// ones if it stands for several.
function drawMap(box, around, by, isHit, chosen) {
  const { width, height } = box.getBoundingClientRect();
  const shown = new Map();
  const elements = layout(around, width, height, by).map((placed) => {
    const { view, box: own, label, isFrame, hasLabel, small } = placed;
    const colour = placed.colour || paint(view, by);
    const made = element("div", isFrame ? "frame" : `tile ${colour}`);
    made.style.left = `${own.x + 0.5}px`;
    made.style.top = `${own.y + 0.5}px`;
    made.style.width = `${Math.max(0.5, own.w - 1)}px`;
    made.style.height = `${Math.max(0.5, own.h - 1)}px`;
    if (isHit(view)) made.classList.add("hit");
    if (view === chosen && !small) made.classList.add("chosen");
    if (isFrame && hasLabel) {
      const times = view.copies > 1 ? [" ", element("b", "", `×${count(view.copies)}`)] : [];
      made.append(element("span", "", label, ...times));
    } else if (!isFrame) {
      labels(made, own, label, view.node.kind && !small ? view.node.kind.shape : "");
    }
    shown.set(made, placed);
    return made;
  });
  box.replaceChildren(...elements);
  return shown;
}

function labels(made, box, label, shape) {
  if (box.h > 2 * box.w && box.w >= 18 && box.w < 60 && box.h > 50) {
    made.classList.add("down");
    made.append(element("span", "", label));
  } else if (box.h >= 20 && box.w >= 40) {
    made.append(element("span", "", label));
    if (shape && box.h >= 40) made.append(element("span", "", shape));
  }
}
