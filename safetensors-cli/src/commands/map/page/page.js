// Tabs, search and selection. The part of the address after # has the state, so that a link leads
// to the same view.

const at = (id) => document.getElementById(id);
const panel = at("panel");

const state = {
  tab: "tensors",
  by: data.by_module ? "module" : "dtype",
  words: [],
  around: root,
  chosen: null,
};

let results = [];
let hits = new Set();
let shownOnMap = new Map();

const rows = new Rows(panel, (item) =>
  state.words.length > 0
    ? resultRow(item, state.words, state.by, item === state.chosen)
    : treeRow(item, state.by, item === state.chosen),
);

// Header.

function drawHeader() {
  at("title").textContent = data.title;
  const dtypes = data.dtypes.map(([name]) => name);
  const facts = [counted(data.tensors, "tensor"), `${data.parameters} parameters`];
  facts.push(size(data.bytes));
  facts.push(dtypes.length > 4 ? counted(dtypes.length, "dtype") : dtypes.join(", "));
  const files = data.files.length + data.more_files;
  if (files > 1) facts.push(counted(files, "file"));
  at("facts").textContent = facts.join("  ·  ");
}

// Search.

const haystacks = [];

function search(query) {
  state.words = query.toLowerCase().split(/\s+/).filter((word) => word !== "");
  if (haystacks.length === 0) {
    for (const tensor of tensors) haystacks.push(`${tensor.path} ${kindOf(tensor)}`.toLowerCase());
  }
  results = state.words.length === 0
    ? []
    : tensors.filter((_, i) => state.words.every((word) => haystacks[i].includes(word)));
  hits = new Set();
  for (const result of results) {
    for (let view = result.view; view && !hits.has(view); view = view.parent) hits.add(view);
  }
}

// Lists.

const TABS = {
  tensors: ["Tensors", () => data.tensors, drawTensors],
  dtypes: ["Dtypes", () => data.dtypes.length, drawDtypes],
  metadata: ["Metadata", () => data.metadata.length + data.more_metadata, drawMetadata],
  files: ["Files", () => data.files.length + data.more_files, drawFiles],
};

function drawTabs() {
  const buttons = Object.entries(TABS).map(([id, [name, number]]) => {
    const button = element("button", "", name);
    const found = id === "tensors" && state.words.length > 0;
    button.append(element("small", "", count(found ? results.length : number())));
    button.setAttribute("role", "tab");
    button.setAttribute("aria-selected", String(id === state.tab));
    button.addEventListener("click", () => change({ tab: id }));
    return button;
  });
  at("tabs").replaceChildren(...buttons);
}

function drawTensors() {
  const items = state.words.length > 0 ? results : openViews(root.children);
  if (items.length === 0) {
    panel.replaceChildren(element("p", "note", "No tensor matches."));
    return;
  }
  if (!rows.box.isConnected) panel.replaceChildren(rows.box);
  rows.set(items);
}

function table(heads, lines, more, thing) {
  const row = (cells, tag) => {
    const made = document.createElement("tr");
    made.append(...cells.map((cell) => element(tag, "", ...[cell].flat())));
    return made;
  };
  const made = document.createElement("table");
  made.append(row(heads, "th"), ...lines.map((line) => row(line, "td")));
  panel.replaceChildren(made);
  if (more > 0) panel.append(element("p", "note", `and ${counted(more, thing)} more`));
}

function drawDtypes() {
  const lines = data.dtypes.map(([name, number, parameters, bytes], i) => {
    const swatch = element("span", `swatch paint d${i}`);
    return [[swatch, name], count(number), count(parameters), size(bytes), share(bytes)];
  });
  table(["dtype", "tensors", "parameters", "size", "share"], lines, 0, "");
}

function drawFiles() {
  const lines = data.files.map(([name, number, bytes]) => [name, count(number), size(bytes)]);
  table(["file", "tensors", "size"], lines, data.more_files, "file");
  if (data.index) panel.append(element("p", "note", `Index: ${data.index}`));
}

function drawMetadata() {
  const list = document.createElement("dl");
  for (const [key, value] of data.metadata) {
    const text = element("dd", "", value);
    const entry = element("div", "", element("dt", "", key), text);
    if (value.length > 360) {
      text.classList.add("long");
      const more = element("button", "more", "Show all");
      more.addEventListener("click", () => {
        more.textContent = text.classList.toggle("long") ? "Show all" : "Show less";
      });
      entry.append(more);
    }
    list.append(entry);
  }
  panel.replaceChildren(list);
  const more = data.more_metadata;
  if (data.metadata.length === 0) panel.replaceChildren(element("p", "note", "No metadata."));
  if (more > 0) panel.append(element("p", "note", `and ${count(more)} more entries`));
}

// Map.

function chosenView() {
  return state.chosen && (state.chosen.members ? state.chosen : state.chosen.view);
}

function drawStage() {
  const isSearch = state.words.length > 0;
  const map = at("map");
  map.classList.toggle("searching", isSearch);
  map.setAttribute("aria-label", `Map of ${state.around.path || data.title}`);
  shownOnMap = drawMap(map, state.around, state.by, (view) => hits.has(view), chosenView());
  drawTrail();
  drawLegend();
  describe(chosenView() || state.around);
}

function drawTrail() {
  const trail = [];
  for (let view = state.around; view; view = view.parent) trail.unshift(view);
  const parts = trail.flatMap((view, i) => {
    const button = element("button", "", view.label);
    button.disabled = view === state.around;
    button.addEventListener("click", () => change({ around: view, chosen: null }));
    return i === 0 ? [button] : [element("i", "", "›"), button];
  });
  at("trail").replaceChildren(...parts);
}

function drawSwitch() {
  if (data.groups.length === 0) return;
  const buttons = [["module", "Modules"], ["dtype", "Dtypes"]].map(([by, name]) => {
    const button = element("button", "", name);
    button.setAttribute("aria-pressed", String(state.by === by));
    button.addEventListener("click", () => change({ by }));
    return button;
  });
  at("switch").replaceChildren(...buttons);
}

function drawLegend() {
  const entries = state.by === "module"
    ? data.groups.map(([name, bytes], i) => [name, bytes, `g${i}`])
    : data.dtypes.map(([name, , , bytes], i) => [name, bytes, `d${i}`]).sort((a, b) => b[1] - a[1]);
  const own = entries.reduce((sum, [, bytes]) => sum + bytes, 0);
  if (data.bytes - own > data.bytes / 1e4) entries.push(["other", data.bytes - own, ""]);
  const items = entries.map(([name, bytes, kind]) =>
    element(
      "li", "",
      element("span", `swatch paint ${kind}`),
      element("span", "", name),
      element("small", "", share(bytes)),
    ));
  at("legend").replaceChildren(...items);
}

// Says what a view is, below the map.
function describe(view, small) {
  const facts = [];
  if (small) {
    const bytes = small.reduce((sum, child) => sum + child.bytes, 0) * view.times;
    const number = small.reduce((sum, child) => sum + child.node.tensors * child.times, 0);
    facts.push(counted(number, "small tensor"), size(bytes), share(bytes));
  } else {
    const { node, times } = view;
    const bytes = node.bytes * times;
    if (node.kind) facts.push((times > 1 ? `${count(times)} × ` : "") + kindOf(node));
    else facts.push(counted(node.tensors * times, "tensor"));
    const parameters = view === root ? data.parameters : count(node.parameters * times);
    facts.push(`${parameters} parameters`, size(bytes), share(bytes));
    if (node.kind && times === 1 && data.files.length > 1) facts.push(data.files[node.file]?.[0]);
  }
  at("about").replaceChildren(
    element("p", "", view.path || data.title),
    element("p", "", facts.filter((fact) => fact).join("  ·  ")),
  );
}

// Selection.

function choose(item) {
  const view = item.members ? item : item.view;
  const around = view.children ? view : view.parent;
  for (let up = view.parent; up; up = up.parent) up.isOpen = true;
  change({ chosen: item, around });
}

function change(changes) {
  const before = { ...state };
  Object.assign(state, changes);
  if (state.tab !== before.tab) panel.scrollTop = 0;
  drawTabs();
  drawSwitch();
  TABS[state.tab][2]();
  drawStage();
  if (state.tab === "tensors" && state.chosen !== before.chosen && state.chosen) {
    const index = rows.items.indexOf(state.chosen);
    if (index >= 0) rows.reveal(index);
  }
  remember();
}

function remember() {
  const parts = new URLSearchParams();
  if (state.tab !== "tensors") parts.set("tab", state.tab);
  if (at("query").value) parts.set("q", at("query").value);
  if (state.around !== root) parts.set("at", state.around.path);
  if (state.by !== (data.by_module ? "module" : "dtype")) parts.set("by", state.by);
  try {
    history.replaceState(null, "", `#${parts}`);
  } catch {
    // Some browsers do not allow this for local files. Then the address stays as it is.
  }
}

function restore() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const tab = parts.get("tab");
  const by = parts.get("by");
  at("query").value = parts.get("q") || "";
  search(at("query").value);
  let around = root;
  const path = parts.get("at");
  for (let inside = path && root.children; inside;) {
    const isOn = (view) => path === view.path || path.startsWith(view.path + data.separator);
    const next = inside.find(isOn);
    if (!next || !next.children) break;
    next.isOpen = true;
    around = next;
    inside = next.children;
  }
  change({
    tab: Object.hasOwn(TABS, tab || "") ? tab : "tensors",
    by: ["module", "dtype"].includes(by) && data.groups.length > 0 ? by : state.by,
    around,
    chosen: null,
  });
}

// Opens modules, the largest first, while the list is short.
function openSome() {
  let rows = root.children.length;
  for (;;) {
    const closed = openViews(root.children).filter((view) => view.children && !view.isOpen);
    if (closed.length === 0) return;
    const largest = closed.reduce((a, b) => (b.bytes * b.times > a.bytes * a.times ? b : a));
    rows += largest.children.length;
    if (rows > 28 && openViews(root.children).length > 1) return;
    largest.isOpen = true;
  }
}

// Events.

at("query").addEventListener("input", (event) => {
  search(event.target.value);
  panel.scrollTop = 0;
  change({ tab: "tensors", chosen: null });
});

panel.addEventListener("scroll", () => requestAnimationFrame(() => rows.paint()));

panel.addEventListener("click", (event) => {
  const row = event.target.closest(".row");
  if (!row) return;
  const item = rows.items[Math.round(parseFloat(row.style.top) / ROW)];
  if (item.members && item.children && (event.target.closest(".fold") || item === state.chosen)) {
    item.isOpen = !item.isOpen;
    drawTensors();
  } else {
    if (item.children) item.isOpen = true;
    choose(item);
  }
});

panel.addEventListener("mouseover", (event) => {
  const row = event.target.closest(".row");
  if (!row) return;
  const item = rows.items[Math.round(parseFloat(row.style.top) / ROW)];
  if (item) describe(item.members ? item : item.view);
});

panel.addEventListener("mouseleave", () => describe(chosenView() || state.around));

at("map").addEventListener("mouseover", (event) => {
  const placed = shownOnMap.get(event.target.closest(".tile, .frame"));
  if (placed) describe(placed.view, placed.small);
});

at("map").addEventListener("mouseleave", () => describe(chosenView() || state.around));

at("map").addEventListener("click", (event) => {
  const placed = shownOnMap.get(event.target.closest(".tile, .frame"));
  if (!placed || placed.view === root) return;
  state.tab = "tensors";
  choose(placed.view);
});

document.addEventListener("keydown", (event) => {
  const isTyping = event.target === at("query");
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    at("query").select();
  } else if (event.key === "Escape") {
    if (state.words.length > 0) {
      at("query").value = "";
      search("");
      change({ chosen: null });
    } else if (state.around.parent) {
      change({ around: state.around.parent, chosen: null });
    }
  } else if (!isTyping && event.target === panel && state.tab === "tensors") {
    move(event);
  }
});

// The keys of the list: up and down, and right and left to open and close modules.
function move(event) {
  const index = rows.items.indexOf(state.chosen);
  const item = rows.items[index];
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) {
    choose(rows.items[Math.min(Math.max(index + step, 0), rows.items.length - 1)]);
  } else if (event.key === "ArrowRight" && item && item.children) {
    item.isOpen = true;
    drawTensors();
  } else if (event.key === "ArrowLeft" && item && item.members) {
    if (item.isOpen && item.children) {
      item.isOpen = false;
      drawTensors();
    } else if (item.parent !== root) {
      choose(item.parent);
    }
  } else {
    return;
  }
  event.preventDefault();
}

window.addEventListener("hashchange", restore);

new ResizeObserver(() => {
  drawStage();
  rows.paint();
}).observe(at("map"));

drawHeader();
openSome();
restore();
