// Applies the chosen appearance before the first paint.
try {
  const theme = localStorage.getItem("latermq.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch (blocked) { /* storage is disabled: the system's appearance applies */ }
