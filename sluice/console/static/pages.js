// The pages, in the navigation's order. Each is a module of `pages/` that is loaded once somebody opens it.

export const PAGES = [
  { name: "overview", title: "Overview", load: () => import("./pages/overview.js") },
  { name: "splitting", title: "Splitting", load: () => import("./pages/splitting.js") },
];
