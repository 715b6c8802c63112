// Adds a box above a table of class "filtered", which hides the rows without the
// words in it.
document.querySelectorAll(".filtered table").forEach((table) => {
  const box = document.createElement("input");
  box.type = "search";
  box.placeholder = "Filter the table";
  box.setAttribute("aria-label", box.placeholder);
  table.closest(".filtered").prepend(box);
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    table.querySelectorAll("tbody tr").forEach((row) => {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    });
  });
});
