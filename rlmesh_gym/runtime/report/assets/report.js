"use strict";
// Pages, sorts and filters the episode table. Without it the first page stands there as HTML.
(() => {
  const rows = JSON.parse(document.getElementById("episode-data").textContent);
  const body = document.getElementById("episode-rows");
  const heads = Array.from(document.querySelectorAll("#episode-table thead th"));
  const filter = document.getElementById("episode-filter");
  const where = document.getElementById("episode-where");
  const previous = document.getElementById("episode-previous");
  const next = document.getElementById("episode-next");
  const size = body.rows.length;
  const kinds = heads.map((head) => head.dataset.kind);
  const tone = { failed: "bad", succeeded: "good", interrupted: "warn" };
  const endColumn = kinds.indexOf("end");
  const verdictColumn = kinds.indexOf("verdict");
  let order = rows.map((_, place) => place);
  let page = 0;
  let sorted = { column: 0, down: false };

  const grouped = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 6 });
  const show = (value, kind) => {
    if (value === null) return "—";
    return kind === "number" && typeof value === "number" ? grouped.format(value) : String(value);
  };
  // JSON has no infinities; they come as the text that is shown.
  const finite = (value) => ({ "∞": Number.MAX_VALUE, "-∞": -Number.MAX_VALUE })[value] ?? value;
  const compare = (kind) => (left, right) => {
    if (left === null || right === null) return (left === null) - (right === null);
    if (kind === "seed") {
      const [a, b] = [BigInt(left), BigInt(right)];
      return a < b ? -1 : Number(a > b);
    }
    if (kind === "number") return Math.sign(finite(left) - finite(right));
    return left < right ? -1 : Number(left > right);
  };

  const draw = () => {
    const first = page * size;
    const part = order.slice(first, first + size);
    body.replaceChildren(...part.map((place) => {
      const line = document.createElement("tr");
      rows[place].forEach((value, column) => {
        const cell = document.createElement("td");
        cell.textContent = show(value, kinds[column]);
        if (kinds[column] === "number" || kinds[column] === "seed") cell.className = "num";
        if (kinds[column] === "id") cell.className = "id";
        if (Object.hasOwn(tone, String(value)) && column >= endColumn) cell.className = tone[value];
        line.append(cell);
      });
      return line;
    }));
    where.textContent = order.length === 0 ? "no such episode"
      : `${grouped.format(first + 1)} to ${grouped.format(first + part.length)} of ${order.length.toLocaleString("en-US")}`;
    previous.disabled = page === 0;
    next.disabled = first + size >= order.length;
  };

  const arrange = () => {
    const wanted = filter.value;
    order = rows.map((_, place) => place).filter((place) => wanted === "all"
      || rows[place][endColumn] === wanted || rows[place][verdictColumn] === wanted);
    const by = compare(kinds[sorted.column]);
    const sign = sorted.down ? -1 : 1;
    order.sort((a, b) => sign * by(rows[a][sorted.column], rows[b][sorted.column]) || a - b);
    heads.forEach((head, column) => {
      if (column === sorted.column) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    page = 0;
    draw();
  };

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      sorted = { column, down: sorted.column === column && !sorted.down };
      arrange();
    });
  });
  filter.addEventListener("change", arrange);
  previous.addEventListener("click", () => { page -= 1; draw(); });
  next.addEventListener("click", () => { page += 1; draw(); });
  for (const tools of document.querySelectorAll(".bar-row[hidden]")) tools.hidden = false;
  arrange();
})();
