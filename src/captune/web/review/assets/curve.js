// The curve of coverage against precision: what confidences promise, what checks say, and the person's point on it.

const percent = (share) => `${Math.round(100 * share)}%`;
const [WIDTH, HEIGHT, LEFT, BOTTOM, EDGE] = [480, 240, 46, 40, 10];

const FEWEST = 5; // with fewer checks, the band says nothing

const draw = (tag, attributes, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

/** Return a drawing of what `captune accept` found: points of the curve, the precision asked for, and the accepted share. */
export const drawCurve = ({ curve, precision, n_accepted: accepted, n_images: total }) => {
  const checked = curve.filter((point) => point.n_checks >= FEWEST);
  const least = Math.max(0, Math.floor(10 * Math.min(precision - 0.05, ...curve.map((point) => point.expected), ...checked.map((point) => point.low))) / 10);
  const x = (share) => LEFT + share * (WIDTH - LEFT - EDGE);
  const y = (share) => EDGE + ((1 - share) / (1 - least)) * (HEIGHT - BOTTOM - EDGE);
  const line = (points) => points.map(([share, value]) => `${x(share).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const label = (text, left, top, anchor = "middle") => draw("text", { x: left, y: top, "text-anchor": anchor }, text);
  const marks = [least, (1 + least) / 2, 1];
  const share = total ? accepted / total : 0;
  const told = accepted ? `${percent(share)} of the images are accepted at ${percent(precision)}.` : "No image is accepted yet.";
  return draw("svg", { class: "curve", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Precision of the most confident images. ${told}` },
    ...marks.flatMap((mark) => [draw("line", { class: "grid", x1: LEFT, x2: WIDTH - EDGE, y1: y(mark), y2: y(mark) }), label(percent(mark), LEFT - 5, y(mark) + 4, "end")]),
    ...[0, 0.5, 1].map((mark) => label(percent(mark), x(mark), HEIGHT - BOTTOM + 15, mark === 1 ? "end" : "middle")),
    label("share of the images, most confident first", (LEFT + WIDTH) / 2, HEIGHT - 6),
    ...(checked.length ? [draw("polygon", { class: "interval", points: line([...checked.map((p) => [p.coverage, p.high]), ...[...checked].reverse().map((p) => [p.coverage, p.low])]) })] : []),
    draw("polyline", { class: "expected", points: line(curve.map((point) => [point.coverage, point.expected])) }),
    draw("line", { class: "asked", x1: LEFT, x2: WIDTH - EDGE, y1: y(precision), y2: y(precision) }),
    ...(accepted ? [draw("circle", { class: "point", cx: x(share), cy: y(precision), r: 6 })] : []));
};
