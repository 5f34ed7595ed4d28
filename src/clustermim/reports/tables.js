// Tables: sorted by a click, saved as CSV or LaTeX, with a cue where they go on beside the page; commands to copy.

// A click sorts downwards for numbers, upwards for text, and the next one turns it round. Gaps stay last.
function sortBy(heading) {
  const table = heading.closest("table");
  const column = heading.cellIndex;
  const numeric = heading.classList.contains("number");
  const before = heading.getAttribute("aria-sort");
  const up = before ? before === "descending" : !numeric;
  const rows = all("tbody tr", table).map((row) => {
    const cell = row.cells[column];
    return { row, key: numeric ? ("value" in cell.dataset ? Number(cell.dataset.value) : null) : cell.textContent.trim() };
  });
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    const order = numeric ? a.key - b.key : a.key.localeCompare(b.key, undefined, { numeric: true });
    return up ? order : -order;
  });
  all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  table.tBodies[0].append(...rows.map(({ row }) => row));
}

// What a cell says: a number with its interval, or the text of its parts without those of buttons.
function readCell(cell) {
  const { value, low, high, digits } = cell.dataset;
  if (value !== undefined) return { value: Number(value), low, high, digits: Number(digits) };
  const [first, ...more] = [...cell.childNodes].filter((node) => node.nodeName !== "BUTTON").map((node) => node.textContent.trim()).filter(Boolean);
  return { text: first === undefined || first === "–" ? "" : more.length ? `${first} (${more.join(", ")})` : first };
}

// Columns with their names and cells, those aside that a kind of file leaves out.
function readTable(table, kind) {
  const left = (heading) => heading.dataset.skip === undefined || ![kind, ""].includes(heading.dataset.skip);
  return all("thead th", table).filter(left).map((heading) => ({
    name: heading.dataset.name,
    cells: all("tbody tr", table).map((row) => readCell(row.cells[heading.cellIndex])),
  }));
}

// CSV with a column for each end of an interval; a text that a spreadsheet would take for a formula gets an apostrophe.
function toCsv(table) {
  const quote = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const plain = (text) => quote(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text);
  const columns = readTable(table, "csv").flatMap(({ name, cells }) => {
    const own = [[plain(name), ...cells.map((cell) => (cell.text === undefined ? String(cell.value) : plain(cell.text)))]];
    if (!cells.some((cell) => cell.low !== undefined)) return own;
    return [...own, ...["low", "high"].map((end) => [plain(`${name} ${end}`), ...cells.map((cell) => cell[end] ?? "")])];
  });
  return columns[0].map((_, row) => `${columns.map((column) => column[row]).join(",")}\r\n`).join("");
}

const TEX = {
  "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", $: "\\$", "&": "\\&", "#": "\\#", _: "\\_", "%": "\\%",
  "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}", "−": "$-$", "…": "\\dots{}",
};
const texText = (text) => text.replace(/[\\{}$&#_%~^<>−…]/g, (letter) => TEX[letter]).replace(/\s+/g, " ");

// A tabular for the package booktabs, numbers to the right with their intervals in brackets.
function toTex(table) {
  const number = (value, digits) => Number(value).toFixed(digits).replace(/^-(?=0(\.0*)?$)/, "").replace("-", "$-$");
  const columns = readTable(table, "tex").map(({ name, cells }) => ({
    side: cells.some((cell) => cell.text === undefined) ? "r" : "l",
    texts: [texText(name), ...cells.map(({ text, value, low, high, digits }) => {
      if (text !== undefined) return texText(text);
      return number(value, digits) + (low === undefined ? "" : ` [${number(low, digits)}, ${number(high, digits)}]`);
    })],
  }));
  const [head, ...body] = columns[0].texts.map((_, row) => `${columns.map(({ texts }) => texts[row]).join(" & ")} \\\\`);
  const sides = columns.map(({ side }) => side).join("");
  return [`\\begin{tabular}{${sides}}`, "\\toprule", head, "\\midrule", ...body, "\\bottomrule", "\\end{tabular}", ""].join("\n");
}

function save(table, kind) {
  const [text, type] = kind === "csv" ? [`\ufeff${toCsv(table)}`, "text/csv"] : [toTex(table), "text/plain"];
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = make("a", { href: url, download: `${table.dataset.file}.${kind}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Copies a command; where a browser forbids that, the text is selected for the user to copy.
async function copy(button) {
  const code = button.parentNode.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  } catch {
    getSelection().selectAllChildren(code);
  }
}

// A frame says on which sides its content goes on.
function watchScrolling(scroller) {
  const frame = scroller.querySelector(".table");
  const look = () => {
    scroller.classList.toggle("left", frame.scrollLeft > 1);
    scroller.classList.toggle("right", frame.scrollLeft + frame.clientWidth < frame.scrollWidth - 1);
  };
  frame.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(frame);
  look();
}

function startTables() {
  all("button.sort").forEach((button) => button.addEventListener("click", () => sortBy(button.closest("th"))));
  all("button.copy").forEach((button) => button.addEventListener("click", () => copy(button)));
  all("button[data-save]").forEach((button) => {
    const table = button.closest(".scroller").querySelector("table");
    button.addEventListener("click", () => save(table, button.dataset.save));
  });
  all(".scroller").forEach(watchScrolling);
}
