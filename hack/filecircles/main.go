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

// Command filecircles prints the files of a package that use each other in a circle. A file uses another one if it names
// something that is declared there. Go allows such circles, but a reader of one file has to read all files of its circle.
//
//	go run ./hack/filecircles [-edges] [PACKAGE...]
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// circle is a set of files of a package that use each other, directly or through other files.
type circle struct {
	pkg   string
	files []string
	graph graph
}

func main() {
	edges := flag.Bool("edges", false, "print the names that the files of a circle use from each other")
	flag.Parse()
	patterns := flag.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	circles, err := find(".", patterns...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, c := range circles {
		fmt.Printf("%d %s: %s\n", len(c.files), c.pkg, strings.Join(c.files, " "))
		for _, from := range c.files {
			for _, to := range c.files {
				if names := c.graph[from][to]; *edges && len(names) > 0 {
					fmt.Printf("  %s -> %s: %s\n", from, to, strings.Join(names, " "))
				}
			}
		}
	}
}

// graph has, for each file of a package, the files that it uses, and the names that it uses from them.
type graph map[string]map[string][]string

// find returns the circles of packages, the largest first.
func find(dir string, patterns ...string) (circles []circle, err error) {
	const mode = packages.NeedName | packages.NeedFiles | packages.NeedSyntax |
		packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports
	all, err := packages.Load(&packages.Config{Mode: mode, Dir: dir}, patterns...)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		g := uses(p)
		for _, files := range circlesOf(g) {
			circles = append(circles, circle{p.PkgPath, files, g})
		}
	}
	slices.SortStableFunc(circles, func(a, b circle) int { return len(b.files) - len(a.files) })
	return circles, nil
}

// uses returns the graph of a package.
func uses(p *packages.Package) graph {
	g := graph{}
	for _, file := range p.Syntax {
		from := filepath.Base(p.Fset.Position(file.Pos()).Filename)
		g[from] = map[string][]string{}
		ast.Inspect(file, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			o := p.TypesInfo.Uses[id]
			if o == nil || o.Pkg() != p.Types || !declares(o) {
				return true
			}
			to := filepath.Base(p.Fset.Position(o.Pos()).Filename)
			if to != from && !slices.Contains(g[from][to], o.Name()) {
				g[from][to] = append(g[from][to], o.Name())
			}
			return true
		})
	}
	return g
}

// declares reports whether an object is declared by a package, outside of functions.
func declares(o types.Object) bool {
	if f, ok := o.(*types.Func); ok && f.Signature().Recv() != nil {
		return true
	}
	v, ok := o.(*types.Var)
	return ok && v.IsField() || o.Parent() == o.Pkg().Scope()
}

// circlesOf returns the strongly connected components of more than one file, by Tarjan's algorithm.
func circlesOf(g graph) (circles [][]string) {
	index, low, on := map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	var visit func(string)
	visit = func(file string) {
		index[file] = len(index) + 1
		low[file] = index[file]
		stack, on[file] = append(stack, file), true
		for _, to := range slices.Sorted(maps.Keys(g[file])) {
			if index[to] == 0 {
				visit(to)
				low[file] = min(low[file], low[to])
			} else if on[to] {
				low[file] = min(low[file], index[to])
			}
		}
		if low[file] != index[file] {
			return
		}
		at := slices.Index(stack, file)
		files := slices.Sorted(slices.Values(stack[at:]))
		for _, f := range files {
			on[f] = false
		}
		if stack = stack[:at]; len(files) > 1 {
			circles = append(circles, files)
		}
	}
	for _, file := range slices.Sorted(maps.Keys(g)) {
		if index[file] == 0 {
			visit(file)
		}
	}
	return circles
}
