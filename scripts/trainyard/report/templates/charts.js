// The charts of a sweep, in Vega-Lite. `data` is that of `trial_charts`, `width` that of the page in pixels.
const LINEAR = {zero: false, padding: 10, nice: false};
const LOG = {type: "log", padding: 10, nice: false};
const HEIGHT = 200;
const AXIS = 74;  // pixels that the axis beside a chart takes
const INK = {expr: "ink"};  // the color of texts, and of the best trial
const TONE = {expr: "tone"};  // the color of trials
const HOVERED = {param: "hover", empty: false};
const BEST = {test: "datum.is_best"};
const PARAMS = [
    {name: "brush", select: {type: "interval", resolve: "intersect"}},
    {name: "hover", select: {type: "point", fields: ["trial"], on: "mouseover", clear: "mouseout"}},
];

// The better a trial, the more its color differs from the background.
function colorOfMetric(data) {
    const isDark = document.documentElement.classList.contains("dark");
    const scale = {scheme: "viridis", reverse: (data.mode === "max") !== isDark, type: data.log ? "log" : "linear"};
    if (data.domain) Object.assign(scale, {domain: data.domain, clamp: true});
    return {field: "metric", type: "quantitative", legend: null, scale};
}

function chartSpec(data, width) {
    const columns = Math.max(1, Math.min(3, Math.floor(width / 340)));
    const part = (count) => Math.floor((width / columns) * Math.min(count, columns)) - AXIS;
    const format = data.percent ? ".1%" : ".4~g";
    const metric = {field: "metric", type: "quantitative", title: data.metric};
    const scale = {...(data.log ? LOG : LINEAR), ...(data.domain ? {domain: data.domain} : {})};
    const y = {...metric, scale, axis: {format}};
    const told = [
        {field: "trial", type: "nominal"},
        ...data.keys.map(({field, title}) => ({field, title})),
        {...metric, format},
        {field: "status", type: "nominal"},
    ];
    const points = (x) => ({
        params: PARAMS,
        mark: {type: "point", filled: true, clip: true, strokeWidth: 2},
        encoding: {
            x, y, tooltip: told,
            color: {condition: {test: "datum.status === 'stopped'", value: "#999999"}, value: TONE},
            stroke: {condition: {...BEST, value: INK}, value: null},
            opacity: {condition: {param: "brush", value: 0.8}, value: 0.12},
            size: {condition: [{...HOVERED, value: 200}, {...BEST, value: 120}], value: 40},
        },
    });
    const history = {
        title: "Best so far", width: part(2), height: HEIGHT,
        layer: [
            points({field: "order", type: "quantitative", title: "trials in the order of their ends", axis: {tickMinStep: 1, format: "d"}, scale: LINEAR}),
            {
                transform: [{filter: "isValid(datum.record)"}],
                mark: {type: "line", interpolate: "step-after", strokeWidth: 1.5, clip: true},
                encoding: {x: {field: "order", type: "quantitative"}, y: {...y, field: "record"}, color: {value: INK}},
            },
        ],
    };
    const slices = data.keys.map((key) => {
        const x = {field: key.field, title: key.title};
        if (key.numeric) Object.assign(x, {type: "quantitative", scale: key.log ? LOG : LINEAR});
        else Object.assign(x, {type: "nominal", sort: null, axis: {labelAngle: -30}});
        const layer = key.spread ? [spread(x, y), points(x)] : [points(x)];
        return {width: part(1), height: HEIGHT, layer};
    });
    const rows = [data.importance.length ? sideBySide([history, importance(data, part(1))], columns) : history];
    rows.push({title: {text: `${data.metric} against each key`, anchor: "start"}, columns, concat: slices});
    if (data.keys.length > 1) rows.push(parallel(data, width - 60, told));
    if (data.curves.length) rows.push(curves(data, width - AXIS, told));
    return {
        datasets: {trials: data.trials, curves: data.curves},
        data: {name: "trials"},
        vconcat: rows,
        config: config(width),
    };
}

const sideBySide = (charts, columns) => (columns > 1 ? {hconcat: charts} : {vconcat: charts});
const config = (width) => ({
    axis: {gridOpacity: 0.3, labelLimit: 110, titleLimit: 240, labelOverlap: "greedy", labelSeparation: 6},
    title: {anchor: "start", fontSize: 13, limit: width},
    view: {stroke: null},
    legend: {orient: "top", title: null, labelLimit: 300},
});

// The mean of each configuration, plus and minus the standard deviation over its seeds.
const spread = (x, y) => ({
    transform: [
        {
            aggregate: [{op: "mean", field: "metric", as: "mean"}, {op: "stdev", field: "metric", as: "deviation"}],
            groupby: ["configuration", x.field],
        },
        {calculate: "datum.mean - datum.deviation", as: "low"},
        {calculate: "datum.mean + datum.deviation", as: "high"},
    ],
    mark: {type: "rule", clip: true, opacity: 0.6, stroke: INK},
    encoding: {x, y: {...y, field: "low"}, y2: {field: "high"}},
});

const importance = (data, width) => ({
    title: "Importance of the keys",
    width, height: HEIGHT,
    data: {values: data.importance},
    mark: {type: "bar", color: TONE},
    encoding: {
        x: {field: "share", type: "quantitative", title: "share of the variance", axis: {format: "%", tickCount: 4}},
        y: {field: "key", type: "nominal", title: null, sort: null, axis: {labelLimit: 90}},
        tooltip: [{field: "key"}, {field: "share", format: ".0%"}, {field: "error", title: "standard error", format: ".0%"}],
    },
});

// A line per trial through its values of the keys to its metric.
function parallel(data, width, told) {
    const axes = [...data.keys, {field: "metric", title: data.metric, numeric: true, log: data.log}];
    const short = (value) => (typeof value === "number" ? Number(value.toPrecision(3)) : String(value ?? "").slice(0, 12));
    const points = [];
    const ticks = [];
    axes.forEach(({field, numeric, log}, place) => {
        const values = [...new Set(data.trials.map((trial) => trial[field]))].filter((value) => value !== null);
        const clamp = (value) => field === "metric" && data.domain ? Math.min(Math.max(value, data.domain[0]), data.domain[1]) : value;
        const number = numeric ? (value) => (log ? Math.log(clamp(value)) : clamp(value)) : (value) => values.indexOf(value);
        const all = values.map(number);
        const [low, high] = [all.reduce((a, b) => Math.min(a, b), Infinity), all.reduce((a, b) => Math.max(a, b), -Infinity)];
        const height = (value) => (high > low ? (number(value) - low) / (high - low) : 0.5);
        for (const trial of data.trials) {
            if (trial[field] !== null) points.push({trial: trial.trial, place, height: height(trial[field])});
        }
        const shown = values.length <= 8 ? values : numeric ? [low, (low + high) / 2, high].map((each) => (log ? Math.exp(each) : each)) : [values[0], values.at(-1)];
        const free = axes.length * 60 > width ? [0, 0.5, 1] : [];  // on a narrow screen, there is no place for labels
        for (const value of shown) {  // no label covers another
            if (free.some((other) => Math.abs(other - height(value)) < (axes.length * 60 > width ? 1 : 0.07))) continue;
            free.push(height(value));
            const text = field === "metric" && data.percent ? `${(100 * value).toPrecision(3)}%` : short(value);
            ticks.push({place, height: height(value), text: `${text}`});
        }
    });
    const x = {field: "place", type: "quantitative", axis: null, scale: {domain: [-0.35, axes.length - 0.35], nice: false}};
    const y = {field: "height", type: "quantitative", axis: null, scale: {domain: [0, 1], nice: false, padding: 8}};
    const lines = {x, y, detail: {field: "trial"}, tooltip: told};
    return {
        title: "Parallel coordinates", width, height: 240,
        layer: [
            ...linesOf(data, told, {values: points}, lines),
            {data: {values: axes.map((_, place) => ({place}))}, mark: {type: "rule", opacity: 0.5, color: INK}, encoding: {x}},
            ...[{stroke: {expr: "back"}, strokeWidth: 3}, {color: INK}].map((look) => ({
                data: {values: ticks},
                mark: {type: "text", align: "left", dx: 4, fontSize: 10, ...look},
                encoding: {x, y, text: {field: "text"}},
            })),
            {
                data: {values: axes.map(({title}, place) => ({place, title: axes.length * 75 > width ? title.slice(0, 9) : title}))},
                mark: {type: "text", align: "center", baseline: "top", dy: 12, color: INK, limit: Math.max(40, width / axes.length - 6)},
                encoding: {x, y: {value: 240}, text: {field: "title"}},
            },
        ],
    };
}

const curves = (data, width, told) => ({
    title: `${data.curve} over epochs${data.left_out ? `, of the best ${data.left_out} trials` : ""}; the best trial is thick`,
    width, height: 240,
    layer: linesOf(data, told, {name: "curves"}, {
        x: {field: "epoch", type: "quantitative", axis: {tickMinStep: 1, format: "d"}, scale: LINEAR},
        y: {field: "value", type: "quantitative", title: data.curve, scale: data.curve_log ? LOG : LINEAR},
        detail: {field: "trial", type: "nominal"},
        tooltip: told,
    }),
});

// Layers with a line per trial, and that of the best one on top.
function linesOf(data, told, points, encoding) {
    const fields = told.map(({field}) => field).filter((field) => field !== "trial").concat("is_best");
    const looked = {lookup: "trial", from: {data: {name: "trials"}, key: "trial", fields}};
    return [
        {
            data: points, transform: [looked], mark: {type: "line", strokeJoin: "round"},
            encoding: {
                ...encoding,
                color: {condition: {...HOVERED, value: INK}, ...colorOfMetric(data)},
                strokeWidth: {condition: {...HOVERED, value: 3}, value: 1.2},
                opacity: {condition: [{...HOVERED, value: 1}, {param: "brush", value: 0.7}], value: 0.06},
            },
        },
        {
            data: points, transform: [looked, {filter: "datum.is_best"}],
            mark: {type: "line", strokeWidth: 3, color: INK},
            encoding,
        },
    ];
}

// How the jobs ran: attempts on their slots, what was requested, and predictions. `data` is that of `job_charts`.
function jobSpec(data, width) {
    const columns = width > 700 ? 2 : 1;
    const half = Math.floor(width / columns) - AXIS;
    const colors = (shown) => ({type: "nominal", scale: {domain: shown.map(([name]) => name), range: shown.map(([, color]) => color)}});
    const timeline = {
        title: "Slots over time", width: width - 130, height: {step: Math.max(4, Math.min(22, 400 / data.lanes.length))},
        data: {values: data.attempts},
        mark: {type: "bar", stroke: null},
        encoding: {
            x: {field: "begin", type: "quantitative", title: data.axis},
            x2: {field: "stop"},
            y: {
                field: "lane", type: "ordinal", title: null, scale: {domain: data.lanes.map((_, lane) => lane), paddingInner: 0.2},
                axis: {labelLimit: 120, labelExpr: `${JSON.stringify(data.lanes)}[datum.value]`},
            },
            color: {field: "outcome", ...colors(data.outcomes)},
            tooltip: [{field: "trial"}, {field: "outcome"}],
        },
    };
    const waste = {
        title: "Requested and used", width: half - 40, height: {step: 34},
        data: {values: data.parts},
        mark: "bar",
        encoding: {
            x: {field: "seconds", type: "quantitative", title: data.charged, stack: "zero"},
            y: {field: "strategy", type: "nominal", title: null, sort: null, axis: {labelLimit: 130}},
            color: {field: "part", ...colors(data.colors), legend: {columns: width > 700 ? 3 : 1}},
            order: {field: "place"},
            tooltip: [{field: "strategy"}, {field: "part"}, {field: "seconds", format: ",.0f"}],
        },
    };
    const ends = data.predictions.flatMap(({measured, predicted}) => [measured, predicted]);
    const [low, high] = [Math.min(...ends), Math.max(...ends)];
    const type = high > 30 * low && low > 0 ? LOG : LINEAR;
    const predictions = {
        title: "Predicted and measured durations", width: half, height: HEIGHT,
        layer: [
            {data: {values: [{measured: low, predicted: low}, {measured: high, predicted: high}]}, mark: {type: "line", strokeDash: [4, 4], color: INK}},
            {data: {values: data.predictions}, mark: {type: "point", filled: true, color: TONE, tooltip: true}},
        ],
        encoding: {
            x: {field: "predicted", type: "quantitative", title: "predicted seconds", scale: type},
            y: {field: "measured", type: "quantitative", title: "measured seconds", scale: type},
        },
    };
    const below = data.predictions.length ? [waste, predictions] : [waste];
    return {vconcat: [timeline, sideBySide(below, columns)], resolve: {scale: {color: "independent"}}, config: config(width)};
}
