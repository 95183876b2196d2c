// What a report does in a browser: draws its charts, sorts its tables, says where a figure comes from.

for (const holder of document.querySelectorAll(".figure")) {
  draw(holder.querySelector("div"), JSON.parse(holder.querySelector("script").textContent));
}

for (const head of document.querySelectorAll("table.sortable th button")) {
  head.addEventListener("click", () => {
    const cell = head.parentElement, table = cell.closest("table"), body = table.tBodies[0];
    const down = cell.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => {
      const found = row.cells[cell.cellIndex];
      return "sort" in found.dataset ? Number(found.dataset.sort) : found.textContent;
    };
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b
      : typeof a !== typeof b ? (typeof a === "number" ? -1 : 1) : a.localeCompare(b));
    body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * order(key(a), key(b))));
  });
}

const told = document.getElementById("told");

function tell(event) {
  const of = event.target.closest ? event.target.closest("[data-source]") : null;
  if (!of || of.classList.contains("figure")) {
    told.hidden = true;
    return;
  }
  told.replaceChildren(...of.dataset.source.split(" ").map((key) => {
    const line = document.createElement("p");
    line.append(...[...document.getElementById(key).childNodes].map((one) => one.cloneNode(true)));
    return line;
  }));
  told.hidden = false;
  const place = of.getBoundingClientRect(), size = told.getBoundingClientRect();
  told.style.left = `${Math.max(Math.min(place.left, innerWidth - size.width - 8), 4)}px`;
  told.style.top = `${place.bottom + size.height + 8 < innerHeight ? place.bottom + 4
    : Math.max(place.top - size.height - 4, 4)}px`;
}

document.addEventListener("pointerover", tell);
document.addEventListener("click", tell);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") told.hidden = true;
});
for (const button of document.querySelectorAll("button.every")) {
  button.addEventListener("click", () => {
    document.getElementById(button.dataset.table).classList.toggle("all");
  });
}
// Paper shows what is folded away.
window.addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details")) one.open = true;
});
