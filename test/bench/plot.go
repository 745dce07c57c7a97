package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// colors tell the ways apart, also for those who see colours differently
// (Okabe and Ito).
var colors = map[string]color.Color{
	bareHost:  color.RGBA{0x99, 0x99, 0x99, 0xff},
	bareImage: color.RGBA{0xcc, 0xcc, 0xcc, 0xff},
	dockerRun: color.RGBA{0xd5, 0x5e, 0x00, 0xff},
	ociRun:    color.RGBA{0xe6, 0x9f, 0x00, 0xff},
	oursCold:  color.RGBA{0x56, 0xb4, 0xe9, 0xff},
	oursWarm:  color.RGBA{0x00, 0x72, 0xb2, 0xff},
}

// plot draws the result into a file; its ending names the format.
func (r *report) plot(file string) error {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
	var panels []*plot.Plot
	for _, make := range []func() (*plot.Plot, error){
		func() (*plot.Plot, error) { return r.latencies("python") },
		func() (*plot.Plot, error) { return r.latencies("bash") },
		r.rates,
		r.course,
	} {
		p, err := make()
		if err != nil {
			return err
		}
		if p != nil {
			panels = append(panels, p)
		}
	}
	if len(panels) == 0 {
		return nil
	}
	rows := make([][]*plot.Plot, 0, len(panels))
	for _, p := range panels {
		rows = append(rows, []*plot.Plot{p})
	}
	canvas, err := draw.NewFormattedCanvas(20*vg.Centimeter, vg.Length(len(panels))*6.5*vg.Centimeter, strings.TrimPrefix(filepath.Ext(file), "."))
	if err != nil {
		return err
	}
	tiles := draw.Tiles{Rows: len(rows), Cols: 1, PadY: 5 * vg.Millimeter, PadTop: 3 * vg.Millimeter, PadBottom: 3 * vg.Millimeter, PadLeft: 3 * vg.Millimeter, PadRight: 3 * vg.Millimeter}
	for i, row := range plot.Align(rows, tiles, draw.New(canvas)) {
		rows[i][0].Draw(row[0])
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// horizontal draws a bar for each way, from below upwards, with its text behind
// at end.
func horizontal(p *plot.Plot, rows []summary, value, end func(summary) float64, label func(summary) string) error {
	names := make([]string, 0, len(rows))
	for i, s := range rows {
		y := float64(i)
		names = append(names, s.Way)
		// A line and not a BarChart, which begins at 0: there is none on a
		// logarithmic scale.
		bar, err := plotter.NewLine(plotter.XYs{{X: p.X.Min, Y: y}, {X: value(s), Y: y}})
		if err != nil {
			return err
		}
		bar.Color, bar.Width = colors[s.Way], vg.Points(14)
		text, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: end(s), Y: y}}, Labels: []string{"  " + label(s)}})
		if err != nil {
			return err
		}
		text.TextStyle[0].YAlign = draw.YCenter
		p.Add(bar, text)
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -.6, float64(len(names))-.4
	return nil
}

// latencies shows single calls of a language, on a logarithmic scale.
func (r *report) latencies(lang string) (*plot.Plot, error) {
	var rows []summary
	for _, s := range slices.Backward(r.Single) {
		if s.Language == lang && s.Calls > 0 {
			rows = append(rows, s)
		}
	}
	if len(rows) == 0 {
		return nil, nil
	}
	p := plot.New()
	p.Title.Text = lang + ": one call, p50 with p90 and p99 (ms, logarithmic)"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plainTicks{}
	least, most := rows[0].P50, 0.
	for _, s := range rows {
		least, most = min(least, s.P50), max(most, s.P99)
	}
	p.X.Min = least / 3
	if err := horizontal(p, rows, func(s summary) float64 { return s.P50 }, func(s summary) float64 { return s.P99 },
		func(s summary) string { return fmt.Sprintf("%.1f", s.P50) }); err != nil {
		return nil, err
	}
	for i, s := range rows {
		line, err := plotter.NewLine(plotter.XYs{{X: s.P50, Y: float64(i)}, {X: s.P99, Y: float64(i)}})
		if err != nil {
			return nil, err
		}
		dots, err := plotter.NewScatter(plotter.XYs{{X: s.P90, Y: float64(i)}, {X: s.P99, Y: float64(i)}})
		if err != nil {
			return nil, err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: color.Black, Shape: draw.CircleGlyph{}, Radius: vg.Points(1.5)}
		p.Add(line, dots)
	}
	p.X.Min, p.X.Max = least/3, 2*most
	return p, nil
}

// plainTicks are those of a logarithmic scale, with 10 written as 10.
type plainTicks struct{}

func (plainTicks) Ticks(least, most float64) []plot.Tick {
	ticks := plot.LogTicks{}.Ticks(least, most)
	for i, t := range ticks {
		if t.Label != "" {
			ticks[i].Label = strconv.FormatFloat(t.Value, 'f', -1, 64)
		}
	}
	return ticks
}

// rates shows the calls per second of 4 clients.
func (r *report) rates() (*plot.Plot, error) {
	var rows []summary
	for _, s := range slices.Backward(r.Load) {
		if s.Language == "python" && s.Clients == 4 && s.Way != bareHost && s.Way != bareImage {
			rows = append(rows, s)
		}
	}
	if len(rows) == 0 {
		return nil, nil
	}
	p := plot.New()
	p.Title.Text = "python: calls per second, 4 clients without a pause"
	p.X.Min = 0
	for _, s := range rows {
		p.X.Max = max(p.X.Max, 1.15*s.PerSecond)
	}
	value := func(s summary) float64 { return s.PerSecond }
	err := horizontal(p, rows, value, value, func(s summary) string { return fmt.Sprintf("%.1f", s.PerSecond) })
	p.X.Min = 0
	return p, err
}

// course shows how a full pool takes a load.
func (r *report) course() (*plot.Plot, error) {
	if len(r.Drain) == 0 {
		return nil, nil
	}
	p := plot.New()
	p.Title.Text = "a full pool under load: latency of each call (ms)"
	p.X.Label.Text = "seconds"
	p.Y.Min, p.Y.Max = 0, 1
	p.Legend.Top = true
	for _, phase := range []struct {
		name, what string
		color      color.Color
	}{
		{phaseBefore, "one at a time", colors[oursWarm]}, {phaseLoad, "max_concurrent clients", colors[dockerRun]}, {phaseAfter, "one at a time again", colors[oursCold]},
	} {
		var points plotter.XYs
		for _, m := range r.Drain {
			p.Y.Max = max(p.Y.Max, 1.4*m.Took) // room for the legend
			if m.Phase == phase.name {
				points = append(points, plotter.XY{X: m.Seconds, Y: m.Took})
			}
		}
		if len(points) == 0 {
			continue
		}
		dots, err := plotter.NewScatter(points)
		if err != nil {
			return nil, err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: phase.color, Shape: draw.CircleGlyph{}, Radius: vg.Points(2)}
		p.Add(dots)
		p.Legend.Add(phase.what, dots)
	}
	return p, nil
}
