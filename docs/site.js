// What screen readers and keyboards miss in the theme: a name for the search, and wide tables that can be scrolled.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
const reachTables = () => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0;
};
new MutationObserver(reachTables).observe(document.body, { childList: true, subtree: true }); // the theme wraps them late
reachTables();
