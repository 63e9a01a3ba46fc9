/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

	http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// pair is a share of releases that the judge fails, and one that Kayenta's judge fails.
type pair [2]float64

// draw writes the drawings into a directory: healthy releases that fail by spread, and bad releases that are found by change.
func draw(directory string, healthy []pair, found map[string][]float64) error {
	errors := []any{}
	for i, name := range []string{"the operator", "Kayenta's judge"} {
		var points plotter.XYs
		for j, of := range healthy {
			points = append(points, plotter.XY{X: 100 * spreads[j], Y: 100 * of[i]})
		}
		errors = append(errors, name, points)
	}
	power := []any{}
	for _, size := range slices.Sorted(maps.Keys(found)) {
		var points plotter.XYs
		for i, of := range found[size] {
			points = append(points, plotter.XY{X: 100 * (changes[i] - 1), Y: 100 * of})
		}
		power = append(power, size+" pods", points)
	}
	for _, of := range []struct {
		file, x, y string
		lines      []any
	}{
		{"judge-healthy.svg", "standard deviation between pods, %", "healthy releases that fail, worst case, %", errors},
		{"judge-slower.svg", "change of the latency, %", "bad releases that are found, %", power},
	} {
		p := plot.New()
		p.X.Label.Text, p.Y.Label.Text, p.Y.Min, p.Y.Max, p.Legend.Top = of.x, of.y, 0, 100, true
		if err := plotutil.AddLinePoints(p, of.lines...); err != nil {
			return fmt.Errorf("draw %s: %w", of.file, err)
		}
		if err := p.Save(16*vg.Centimeter, 10*vg.Centimeter, filepath.Join(directory, of.file)); err != nil {
			return fmt.Errorf("write %s: %w", of.file, err)
		}
	}
	return nil
}
