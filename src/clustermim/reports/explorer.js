// The token explorer: tiles of tokens, their patches and classes, and images with their token maps.

// Sheets: one picture of many tiles; a tile is a background at its place.
function openSheet({ sheet, columns, rows, width, height }) {
  const bytes = Uint8Array.from(atob(sheet), (letter) => letter.charCodeAt(0));
  const url = URL.createObjectURL(new Blob([bytes], { type: "image/webp" }));
  const at = (place, count) => (count > 1 ? (100 * place) / (count - 1) : 0);
  return {
    close: () => URL.revokeObjectURL(url),
    paint(element, index) {
      element.style.backgroundImage = `url(${url})`;
      element.style.backgroundSize = `${100 * columns}% ${100 * rows}%`;
      element.style.backgroundPosition = `${at(index % columns, columns)}% ${at(Math.floor(index / columns), rows)}%`;
      element.classList.toggle("crisp", Math.max(width, height) < 64);
    },
    shape: `${width} / ${height}`,
  };
}

const percent = (share) => (share >= 0.0995 ? `${(100 * share).toFixed(0)} %` : share >= 0.0005 ? `${(100 * share).toFixed(1)} %` : "<0.1 %");

// Moves with the arrow keys among `count` places in rows of `columns`; undefined for any other key.
function arrow(key, place, columns, count) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  if (!(key in steps)) return undefined;
  const next = place + steps[key];
  return next >= 0 && next < count ? next : place;
}

function startExplorer() {
  const chooser = byId("tokenizer");
  if (!chooser) return;
  const texts = all("script.tokenizer-data");
  const sourceTexts = all("script.source-data");
  const grid = byId("tokens");
  let data, source, sheet, samples, places, pictures;

  function open(index) {
    data = JSON.parse(texts[index].textContent);
    source = JSON.parse(sourceTexts[data.source].textContent);
    sheet?.close();
    samples?.close();
    sheet = openSheet(data.sheet);
    samples = openSheet(source.sheet);
    places = new Map(data.tokens.map((token, place) => [token, place]));
    const rest = data.tokens.length < data.used ? `, the ${data.tokens.length} most used shown` : "";
    byId("explorer-note").textContent =
      `${data.used.toLocaleString("en")} of ${data.vocab.toLocaleString("en")} tokens occur in ${data.images.toLocaleString("en")} images of ${source.spec}${rest}.` +
      (data.centers ? "" : " This tokenizer has no centres: a token shows the mean of its patches.") +
      (data.nearest ? (data.means ? " A token shows the patch nearest to its centre." : "") : " The patches of a token are a random sample.");
    drawTokens();
    drawSamples();
    choose(data.tokens[0]);
  }

  function drawTokens() {
    grid.style.setProperty("--tile", data.tokens.length <= 64 ? "3rem" : "2.25rem");
    grid.replaceChildren(...data.tokens.map((token, place) => {
      const label = `Token ${token}, ${percent(data.counts[place] / data.patches)}`;
      const tile = make("button", { type: "button", className: "tile", title: label, tabIndex: -1 });
      tile.setAttribute("aria-label", label);
      tile.setAttribute("aria-pressed", "false");
      tile.dataset.token = token;
      sheet.paint(tile, place * data.perToken);
      return tile;
    }));
  }

  function drawSamples() {
    const [rows, columns] = data.grid;
    pictures = data.ids.map((ids, image) => {
      const picture = make("div", { className: "picture", tabIndex: 0 });
      picture.dataset.image = image;
      picture.dataset.cell = 0;
      picture.style.aspectRatio = samples.shape;
      samples.paint(picture, image);
      picture.innerHTML = `<svg viewBox="0 0 ${columns} ${rows}" preserveAspectRatio="none" aria-hidden="true"><path class="veil"/><path class="frame"/><rect class="cursor" width="1" height="1"/></svg>`;
      picture.setAttribute("role", "application");
      return picture;
    });
    byId("samples").replaceChildren(...pictures.map((picture, image) => {
      const caption = make("figcaption", { textContent: nameOf(image) });
      caption.title = caption.textContent;
      return make("figure", { className: "sample" }, make("div", { className: "both" }, picture, drawMap(image)), caption);
    }));
  }

  // The tokens of an image in their colours, a pixel each.
  function drawMap(image) {
    const [rows, columns] = data.grid;
    const canvas = make("canvas", { width: columns, height: rows });
    const context = canvas.getContext("2d");
    data.ids[image].forEach((id, cell) => {
      context.fillStyle = `#${data.colors[id]}`;
      context.fillRect(cell % columns, Math.floor(cell / columns), 1, 1);
    });
    const map = make("div", { className: "map" });
    map.style.aspectRatio = samples.shape;
    map.innerHTML = `<svg viewBox="0 0 ${columns} ${rows}" preserveAspectRatio="none" aria-hidden="true"><path class="frame"/></svg>`;
    map.prepend(canvas);
    return map;
  }

  function choose(token) {
    const place = places.get(token);
    if (place === undefined) return;
    all('.tile[aria-pressed="true"]', grid).forEach((tile) => {
      tile.setAttribute("aria-pressed", "false");
      tile.tabIndex = -1;
    });
    const tile = grid.children[place];
    tile.setAttribute("aria-pressed", "true");
    tile.tabIndex = 0;
    const room = grid.getBoundingClientRect();
    const box = tile.getBoundingClientRect();
    if (box.top < room.top || box.bottom > room.bottom) grid.scrollTop += box.top - room.top - room.height / 2;
    drawToken(token, place);
    pictures.forEach((picture, image) => mark(picture, image, token));
  }

  function drawToken(token, place) {
    const share = percent(data.counts[place] / data.patches);
    const inside = data.ids.filter((ids) => ids.includes(token)).length;
    const center = make("div", { className: "tile" });
    sheet.paint(center, place * data.perToken);
    const seen = `${share} of all patches, in ${inside} of these ${data.ids.length} images`;
    const color = make("span", { className: "swatch", title: "its colour in the maps" });
    color.style.backgroundColor = `#${data.colors[token]}`;
    const facts = make("div", { className: "about" }, center, make("div", {},
      make("h3", { textContent: `Token ${token}` }, color), make("p", { textContent: seen })));
    byId("said").textContent = `Token ${token}, ${seen}`;
    const nearest = make("div", { className: "nearest" });
    for (let n = 1; n <= data.filled[place]; n += 1) {
      const patch = make("div", { className: "tile" });
      sheet.paint(patch, place * data.perToken + n);
      nearest.append(patch);
    }
    const what = data.nearest ? "Patches nearest to its centre" : "Some of its patches";
    byId("token").replaceChildren(facts, make("p", { className: "small", textContent: what }), nearest, ...histogram(place));
  }

  function histogram(place) {
    if (!data.histograms) return [];
    const flat = data.histograms[place];
    let bars = [];
    for (let i = 0; i < flat.length; i += 2) bars.push([flat[i], flat[i + 1]]);
    if (data.classes.length <= 12) { // few enough to keep every class in its place
      const counts = new Map(bars);
      bars = data.classes.map((_, label) => [label, counts.get(label) ?? 0]);
    }
    const most = Math.max(...bars.map(([, count]) => count), 1);
    const list = make("dl", { className: "histogram" });
    for (const [label, count] of bars) {
      const bar = make("div");
      bar.style.width = `${(100 * count) / most}%`;
      list.append(
        make("dt", { textContent: data.classes[label], title: data.classes[label] }),
        make("dd", { className: "track" }, ...(count ? [bar] : [])),
        make("dd", { className: "number", textContent: count ? percent(count / data.counts[place]) : "0 %" }),
      );
    }
    return [make("p", { className: "small", textContent: "Classes of the images it occurs in" }), list];
  }

  function mark(picture, image, token) {
    const [rows, columns] = data.grid;
    const cells = data.ids[image].map((id, cell) => (id === token ? cell : -1)).filter((cell) => cell >= 0);
    const boxes = cells.map((cell) => `M${cell % columns} ${Math.floor(cell / columns)}h1v1h-1z`).join("");
    picture.querySelector(".veil").setAttribute("d", `M0 0H${columns}V${rows}H0z${boxes}`);
    all(".frame", picture.parentNode).forEach((frame) => frame.setAttribute("d", boxes));
    picture.setAttribute("aria-label", `${nameOf(image)}, ${cells.length} of ${rows * columns} patches have the token`);
  }

  const nameOf = (image) => (source.labels ? source.labels[image] : `image ${image + 1}`);

  function moveTo(picture, cell) {
    const columns = data.grid[1];
    picture.dataset.cell = cell;
    const cursor = picture.querySelector(".cursor");
    cursor.setAttribute("x", cell % columns);
    cursor.setAttribute("y", Math.floor(cell / columns));
    const where = `row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`;
    byId("said").textContent = `${where}: token ${data.ids[picture.dataset.image][cell]}`;
  }

  grid.addEventListener("click", (event) => {
    const tile = event.target.closest(".tile");
    if (tile) choose(Number(tile.dataset.token));
  });
  grid.addEventListener("keydown", (event) => {
    const tiles = [...grid.children];
    const wide = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
    const next = arrow(event.key, tiles.indexOf(event.target), wide, tiles.length);
    if (next === undefined) return;
    event.preventDefault();
    tiles[next].focus();
  });
  byId("samples").addEventListener("click", (event) => {
    const place = event.target.closest(".picture, .map");
    if (!place) return;
    const picture = place.parentNode.querySelector(".picture");
    const box = place.getBoundingClientRect();
    const [rows, columns] = data.grid;
    const along = (at, size, count) => Math.min(count - 1, Math.max(0, Math.floor((at / size) * count)));
    const cell = along(event.clientY - box.top, box.height, rows) * columns + along(event.clientX - box.left, box.width, columns);
    moveTo(picture, cell);
    choose(data.ids[picture.dataset.image][cell]);
  });
  byId("samples").addEventListener("keydown", (event) => {
    const picture = event.target.closest(".picture");
    if (!picture) return;
    const [rows, columns] = data.grid;
    const next = arrow(event.key, Number(picture.dataset.cell), columns, rows * columns);
    const enter = event.key === "Enter" || event.key === " ";
    if (next === undefined && !enter) return;
    event.preventDefault();
    if (enter) choose(data.ids[picture.dataset.image][picture.dataset.cell]);
    else moveTo(picture, next);
  });
  chooser.addEventListener("change", () => open(Number(chooser.value)));
  open(0);
}
