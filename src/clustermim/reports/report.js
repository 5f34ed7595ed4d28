// Themes, choices and legends; then everything begins.

// Themes: the system's, until somebody chooses.
function startTheme() {
  const root = document.documentElement;
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use the ${dark() ? "light" : "dark"} theme`);
  };
  try {
    const kept = localStorage.getItem("clustermim-theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* a browser may forbid storage for files */ }
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("clustermim-theme", root.dataset.theme); } catch { /* as above */ }
    show();
  });
  system.addEventListener("change", show);
  show();
}

// Charts are drawn when they are first shown.
function draw(root) {
  all("script.chart-data", root).forEach((data) => data.replaceWith(drawChart(JSON.parse(data.textContent))));
}

// Choices: of all charts of a section one is shown, as its selects say.
function startChoices(section) {
  const selects = all("select[data-choice]", section);
  const choices = all(".choice", section);
  const show = () => {
    const wanted = Object.fromEntries(selects.map((select) => [select.dataset.choice, select.value]));
    const fits = (choice) => Object.entries(wanted).every(([name, value]) => choice.dataset[name] === value);
    choices.forEach((choice) => {
      choice.hidden = !fits(choice);
      if (!choice.hidden) draw(choice);
    });
    all(".choice-none", section).forEach((note) => { note.hidden = choices.some(fits); });
  };
  selects.forEach((select) => select.addEventListener("change", show));
  show();
}

// Curves: an entry of the legend brings its line forward, while pointed at or for good.
function startLegends() {
  all(".legend button").forEach((button) => {
    const set = (on) => {
      const line = button.closest("figure").querySelector(`.curve[data-run="${button.dataset.run}"]`);
      line.classList.toggle("on", on);
      if (on) line.parentNode.append(line);
    };
    const pressed = () => button.getAttribute("aria-pressed") === "true";
    for (const name of ["mouseenter", "focus"]) button.addEventListener(name, () => set(true));
    for (const name of ["mouseleave", "blur"]) button.addEventListener(name, () => set(pressed()));
    button.addEventListener("click", () => button.setAttribute("aria-pressed", String(!pressed())));
  });
}

startTheme();
startTables();
["scores", "training"].map(byId).filter(Boolean).forEach(startChoices);
startLegends();
startExplorer();
