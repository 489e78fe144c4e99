// Lists of a stranger's whose items have ids: each id once, so that nothing that is drawn by its id is there twice. Pure.

import type { ClusterView } from "../api/types";

function distinct<T>(list: readonly T[], idOf: (item: T) => string): readonly T[] {
  const known = new Set<string>();
  const once = list.filter((item) => known.size < known.add(idOf(item)).size);
  return once.length === list.length ? list : once;
}

/** The view with each device of a node, and each direction of a link, once: a member may have told them twice. What is in order is shared. */
export function distinctParts(view: ClusterView): ClusterView {
  const links = distinct(view.links, (link) => `${link.from} ${link.to}`);
  let isSame = links === view.links;
  const nodes = view.nodes.map((node) => {
    const devices = distinct(node.devices, (device) => device.id);
    if (devices === node.devices) return node;
    isSame = false;
    return { ...node, devices: [...devices] };
  });
  return isSame ? view : { ...view, nodes, links: [...links] };
}
