package operate

import (
	"fmt"
	"image/color"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// colors tell the series of a panel apart.
var colors = []color.Color{
	color.RGBA{0x1f, 0x77, 0xb4, 0xff}, color.RGBA{0xff, 0x7f, 0x0e, 0xff}, color.RGBA{0x2c, 0xa0, 0x2c, 0xff},
	color.RGBA{0xd6, 0x27, 0x28, 0xff}, color.RGBA{0x94, 0x67, 0xbd, 0xff}, color.RGBA{0x8c, 0x56, 0x4b, 0xff},
	color.RGBA{0xe3, 0x77, 0xc2, 0xff}, color.RGBA{0x7f, 0x7f, 0x7f, 0xff}, color.RGBA{0xbc, 0xbd, 0x22, 0xff},
}

var label = regexp.MustCompile(`{{(\w+)}}`)

// render draws the dashboard's panels with what Prometheus answers to their
// queries, since begin. Grafana itself is in no package.
func render(t *testing.T, p *prometheus, all []panel, begin time.Time, path string) {
	t.Helper()
	const columns, width, height = 3, 16 * vg.Centimeter, 7 * vg.Centimeter
	rows := (len(all) + columns - 1) / columns
	canvas := vgimg.New(columns*width, vg.Length(rows)*height)
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: vg.Centimeter / 2, PadY: vg.Centimeter / 2,
		PadTop: vg.Centimeter / 4, PadBottom: vg.Centimeter / 4, PadLeft: vg.Centimeter / 4, PadRight: vg.Centimeter / 4}
	whole := draw.New(canvas)
	span := url.Values{
		"start": {strconv.FormatInt(begin.Unix(), 10)}, "end": {strconv.FormatInt(time.Now().Unix(), 10)}, "step": {"1"},
	}
	for i, panel := range all {
		graph := plot.New()
		graph.Title.Text = fmt.Sprintf("%s [%s]", panel.Title, panel.FieldConfig.Defaults.Unit)
		graph.Legend.Top, graph.Legend.Left = true, true
		graph.Y.Min = 0
		n := 0
		for _, target := range panel.Targets {
			for _, s := range p.ask("/api/v1/query_range", target.Expr, span) {
				var points plotter.XYs
				for _, v := range s.Values {
					if !math.IsNaN(v.value) {
						points = append(points, plotter.XY{X: v.at - float64(begin.Unix()), Y: v.value})
					}
				}
				if len(points) == 0 {
					continue
				}
				line, err := plotter.NewLine(points)
				if err != nil {
					t.Fatal(err)
				}
				line.Color, line.Width = colors[n%len(colors)], vg.Points(1.5)
				n++
				graph.Add(line)
				graph.Legend.Add(label.ReplaceAllStringFunc(target.LegendFormat, func(name string) string {
					return s.Metric[name[2:len(name)-2]]
				})+fmt.Sprintf(" %.4g", points[len(points)-1].Y), line)
			}
		}
		graph.Y.Max = max(graph.Y.Max*1.6, 1e-3) // room for the legend
		graph.Draw(tiles.At(whole, i%columns, i/columns))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as make does
		t.Fatal(err)
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (vgimg.PngCanvas{Canvas: canvas}).WriteTo(file); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}
