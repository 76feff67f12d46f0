// Light or dark, before anything is painted: as it was chosen, else as the system has it.
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // no storage: the system's choice
}
