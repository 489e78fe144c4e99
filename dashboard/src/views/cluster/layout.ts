// Where nodes are drawn. Depends on the members alone: measurements and states move nothing. Pure.

export type Point = { x: number; y: number };

/** More nodes than this are drawn as dots on rings. */
export const CARDS_MAX = 12;

/** A card with its share of the drawing, in pixels: with more of them, cards would lie on each other. */
const CARD_WIDTH = 58;

/** Whether so many nodes are drawn as cards in a drawing so wide; 0 where that is not known. */
export const asCards = (count: number, width: number): boolean => count <= (width > 0 ? Math.min(CARDS_MAX, Math.max(3, Math.floor(width / CARD_WIDTH))) : CARDS_MAX);

/** Positions in per cent of the drawing, by id. */
export function positions(ids: readonly string[], width = Infinity): Map<string, Point> {
  const sorted = [...ids].sort();
  return asCards(sorted.length, width) ? ellipse(sorted) : rings(sorted);
}

function ellipse(ids: string[]): Map<string, Point> {
  if (ids.length === 1) return new Map([[ids[0]!, { x: 50, y: 50 }]]);
  // Two lie side by side; with more, the first is at the top left, so that the lowest edge is level.
  const turn = ids.length === 2 ? Math.PI : -Math.PI / 2 - Math.PI / ids.length;
  return new Map(ids.map((id, at) => [id, on(turn + (2 * Math.PI * at) / ids.length, 37, ids.length === 2 ? 0 : 36)]));
}

function rings(ids: string[]): Map<string, Point> {
  const count = Math.ceil(ids.length / 34);
  const weights = Array.from({ length: count }, (_, ring) => count - ring + 1);
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const placed = new Map<string, Point>();
  let next = 0;
  for (let ring = 0; ring < count; ring++) {
    const left = ids.length - next;
    const many = ring === count - 1 ? left : Math.round((ids.length * weights[ring]!) / total);
    const radius = 46 - (ring * 34) / count;
    for (let at = 0; at < many; at++) placed.set(ids[next++]!, on((2 * Math.PI * at) / many - Math.PI / 2, radius, radius));
  }
  return placed;
}

const on = (angle: number, x: number, y: number): Point => ({ x: 50 + x * Math.cos(angle), y: 50 + y * Math.sin(angle) });

/** The point that lies so far along from a to b. */
export const between = (a: Point, b: Point, part: number): Point => ({ x: a.x + (b.x - a.x) * part, y: a.y + (b.y - a.y) * part });
