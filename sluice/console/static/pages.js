// The pages, in the navigation's order. Each is a module of `pages/` that is loaded once somebody opens it.

export const PAGES = [
  { name: "overview", title: "Overview", load: () => import("./pages/overview.js") },
  { name: "rendezvous", title: "Rendezvous", load: () => import("./pages/rendezvous.js") },
  { name: "splitting", title: "Splitting", load: () => import("./pages/splitting.js") },
  { name: "federation", title: "Federation", load: () => import("./pages/federation.js") },
  { name: "pipeline", title: "Pipeline", load: () => import("./pages/pipeline.js") },
  { name: "dead-letters", title: "Dead letters", load: () => import("./pages/dead-letters.js") },
  { name: "log", title: "Log", load: () => import("./pages/log.js") },
];
