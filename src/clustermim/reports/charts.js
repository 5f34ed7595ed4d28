// Charts: scales, round ticks, lines, points with intervals, and labels where there is room. Colours are those of the page.
function drawChart(chart) {
  const width = 480, height = 320, left = 62, right = 14, top = 14, bottom = 46;
  const svg = (tag, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": chart.label });
  const add = (tag, attributes, ...children) => root.appendChild(svg(tag, attributes, ...children));

  // A linear scale from values, with a little room around them, to pixels; ticks at 1, 2 or 5 times a power of ten.
  function scale(values, start, end, whole) {
    const room = 0.06 * (Math.max(...values) - Math.min(...values)) || 0.06 * Math.abs(values[0]) || 1;
    const low = Math.min(...values) - room, high = Math.max(...values) + room;
    const power = 10 ** Math.floor(Math.log10((high - low) / 5));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= 0.15 * (high - low) && (!whole || size >= 1)) ?? 1;
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const at = (value) => Number((start + ((value - low) / (high - low)) * (end - start)).toFixed(1));
    const ticks = [];
    for (let n = Math.ceil(low / step); n * step <= high; n += 1) {
      const text = (n * step).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
      ticks.push([at(n * step), text.replace(/^-(?=0(\.0*)?$)/, "").replace("-", "−")]);
    }
    return { at, ticks };
  }

  const places = chart.lines.flatMap((line) => line.places);
  const given = (values) => values.filter((value) => value !== null && value !== undefined);
  const x = scale([...chart.points.map((p) => p.x), ...places.map((p) => p[0])], left, width - right, chart.whole);
  const y = scale(given([...chart.points.flatMap((p) => [p.y, p.low, p.high]), ...places.map((p) => p[1]), ...chart.band.flatMap((b) => b.slice(1))]), height - bottom, top);
  const path = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${x.at(a)} ${y.at(b)}`).join("");

  for (const [place, text] of y.ticks) {
    add("path", { class: "grid", d: `M${left} ${place}H${width - right}` });
    add("text", { class: "tick", x: left - 8, y: place + 4, "text-anchor": "end" }, text);
  }
  for (const [place, text] of x.ticks) {
    add("path", { class: "grid", d: `M${place} ${height - bottom}v4` });
    add("text", { class: "tick", x: place, y: height - bottom + 17, "text-anchor": "middle" }, text);
  }
  add("path", { class: "axis", d: `M${left} ${height - bottom}H${width - right}` });
  add("text", { class: "name", x: (left + width - right) / 2, y: height - 7, "text-anchor": "middle" }, chart.x);
  add("text", { class: "name", transform: `translate(13 ${(height - bottom + top) / 2}) rotate(-90)`, "text-anchor": "middle" }, chart.y);
  const edge = [...chart.band.map(([a, , high]) => [a, high]), ...chart.band.map(([a, low]) => [a, low]).reverse()];
  if (edge.length) add("path", { class: "band", d: `${path(edge)}Z` });
  for (const line of chart.lines) {
    const drawn = add("path", { class: line.style, d: path(line.places) });
    if (line.title) drawn.append(svg("title", {}, line.title));
    if (line.run !== undefined) {
      drawn.dataset.run = line.run;
      drawn.classList.add(`hue-${line.run % 8}`);
    }
  }
  for (const point of chart.points) {
    const mark = add("g", { class: "point", tabindex: 0, role: "img", "aria-label": point.title }, svg("title", {}, point.title));
    if (given([point.low, point.high]).length === 2) mark.append(svg("path", { d: `M${x.at(point.x)} ${y.at(point.low)}V${y.at(point.high)}` }));
    mark.append(svg("circle", { cx: x.at(point.x), cy: y.at(point.y), r: 4.5 }));
  }

  // A label a group, at the first spot beside one of its points, or at the end of its line, where it covers nothing else.
  const spots = [];
  const beside = [[8, 4, "start"], [-8, 4, "end"], [0, -9, "middle"], [0, 18, "middle"]];
  for (const p of chart.points) spots.push([p.group, x.at(p.x), y.at(p.y), beside]);
  for (const { label, places: all } of chart.lines) spots.push([label, x.at(all.at(-1)[0]), y.at(all.at(-1)[1]), [[0, -9, "end"], [0, 17, "end"]]]);
  const taken = spots.map(([, a, b]) => [a - 5, b - 5, a + 5, b + 5]);
  const done = new Set();
  for (const [group, a, b, offsets] of spots.sort((one, other) => one[2] - other[2])) {
    for (const [dx, dy, anchor] of offsets) {
      if (!group || done.has(group)) break;
      const text = group.length <= 24 ? group : `${group.slice(0, 23)}…`;
      const wide = 6.6 * text.length; // about: a hidden chart has no size to measure
      const start = a + dx - { start: 0, middle: wide / 2, end: wide }[anchor];
      const box = [start, b + dy - 11, start + wide, b + dy + 3];
      const inside = box[0] >= left && box[2] <= width && box[1] >= 0 && box[3] <= height - bottom;
      if (!inside || taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
      add("text", { class: "label", x: a + dx, y: b + dy, "text-anchor": anchor }, text);
      taken.push(box);
      done.add(group);
    }
  }
  return root;
}
