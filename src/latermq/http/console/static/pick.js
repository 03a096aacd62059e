// Lists whose rows are picked: a box that picks all of them, and how many are picked.
for (const form of document.querySelectorAll("form[data-pick]")) {
  const boxes = [...form.querySelectorAll("input[type=checkbox][name=id]")], said = form.querySelector("[data-picked]");
  if (!boxes.length) continue;
  const head = form.querySelector("thead th"), all = document.createElement("input");
  all.type = "checkbox";
  all.setAttribute("aria-label", "Pick all on this page");
  head.replaceChildren(all);
  const plain = said?.textContent;
  const tell = () => {
    const picked = boxes.filter(box => box.checked).length;
    all.checked = picked === boxes.length;
    all.indeterminate = picked > 0 && picked < boxes.length;
    if (said) said.textContent = picked ? `${picked} of ${boxes.length} picked` : plain;
  };
  all.addEventListener("change", () => { for (const box of boxes) box.checked = all.checked; tell(); });
  form.addEventListener("change", tell);
  tell();
}
