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

package rules

import (
	"net/url"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

const (
	// maxMade is how many bytes the variables and rules of a check may make together, for
	// one subject: no variable is given back before its rules are through.
	maxMade = 16 << 20
	// maxWalked is how many entries a list or a map that a loop walks may have. What
	// counts the cost takes the square of that.
	maxWalked = 5_000
	// maxWork bounds the loops of an evaluation together: each is the entries that it has
	// by those of it and of the loops that it is in. So many are a second or so.
	maxWork = 500_000_000
)

// What is made takes memory, in bytes, for each of these.
const (
	bytesOfValue    = 64
	bytesOfEntry    = 32  // of a list
	bytesOfMapEntry = 128 // of a map
	// bytesOfStep is what is kept of each step of a loop while it goes on, to count the cost.
	bytesOfStep = 64
)

// tooMuch is the error of who makes too much. Each is another: who evaluates writes in it.
func tooMuch() ref.Val {
	return types.NewErr("it makes more than %d MiB of strings, lists and maps", maxMade>>20)
}

// loop is one of an expression.
type loop struct {
	// bytes that one turn of it holds.
	bytes int
}

// turning is a loop that goes on.
type turning struct {
	*loop
	entries, held int
}

// loop guards one.
func (g guards) loop(c ast.ComprehensionExpr) {
	l := &loop{bytes: bytesOfStep * (stepsIn(c.LoopCondition()) + stepsIn(c.LoopStep()))}
	if r := c.IterRange(); r.Kind() == ast.ComprehensionKind {
		// What counts the cost must see a loop as it is.
		g.at(r.AsComprehension().Result().ID()).walks = l
	} else if r.Kind() != ast.ListKind || len(r.AsList().Elements()) > 0 {
		g.at(r.ID()).walks = l
	}
	g.at(c.LoopCondition().ID()).turns = l
	g.at(c.Result().ID()).ends = l
}

// stepsIn is how many an expression has, without those of loops in it.
func stepsIn(e ast.Expr) (n int) {
	switch e.Kind() {
	case ast.CallKind:
		for _, arg := range e.AsCall().Args() {
			n += stepsIn(arg)
		}
		if e.AsCall().IsMemberFunction() {
			n += stepsIn(e.AsCall().Target())
		}
	case ast.SelectKind:
		n = stepsIn(e.AsSelect().Operand())
	case ast.ListKind:
		for _, element := range e.AsList().Elements() {
			n += stepsIn(element)
		}
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			n += stepsIn(entry.AsMapEntry().Key()) + stepsIn(entry.AsMapEntry().Value())
		}
	case ast.ComprehensionKind:
		n = stepsIn(e.AsComprehension().IterRange())
	default:
	}
	return n + 1
}

// spent says that all was made that may be.
func (m *meter) spent() bool { return m.made+m.held > maxMade }

// walk begins a loop over a value, or says why not.
func (m *meter) walk(l *loop, v ref.Val) ref.Val {
	sized, ok := v.(traits.Sizer)
	if !ok {
		return nil // it is an error all the same
	}
	n := entries(sized)
	if n > maxWalked {
		return types.NewErr("the list has %d entries, at most %d are walked", n, maxWalked)
	}
	around := n
	for _, t := range m.open {
		around += t.entries
	}
	if m.walked += n * around; m.walked > maxWork {
		return types.NewErr("it walks too many entries: have fewer loops within loops, or shorter lists")
	}
	m.open = append(m.open, turning{loop: l, entries: n})
	return nil
}

// turn is one of a loop.
func (m *meter) turn(l *loop) {
	if i := len(m.open) - 1; i >= 0 && m.open[i].loop == l {
		m.open[i].held += l.bytes
		m.held += l.bytes
	}
}

// end ends a loop, and what was in it.
func (m *meter) end(l *loop) {
	for i := len(m.open) - 1; i >= 0; i-- {
		if m.open[i].loop == l {
			m.endTo(i)
			return
		}
	}
}

// endTo ends all loops but the first of those that go on.
func (m *meter) endTo(first int) {
	for _, t := range m.open[first:] {
		m.held -= t.held
	}
	m.open = m.open[:first]
}

// made is how many bytes a value takes that a function made, or a literal or a loop where
// it has no name. What its entries hold was counted when it was made.
func made(function string, v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return bytesOfValue + len(v)
	case types.Bytes:
		return bytesOfValue + len(v)
	case types.Bool, types.Int, types.Uint, types.Double, types.Null:
		return 0
	case traits.Mapper:
		if function == insert {
			return bytesOfMapEntry
		}
		n := bytesOfValue
		for it := v.Iterator(); it.HasNext() == types.True; {
			n += bytesOfMapEntry
			// Of the parameters of a URL.
			if list, ok := v.Get(it.Next()).(traits.Lister); ok && function != "" {
				n += bytesOfEntry * entries(list)
			}
		}
		return n
	case traits.Lister:
		if function == operators.Add {
			return bytesOfValue
		}
		return bytesOfValue + bytesOfEntry*entries(v)
	default: // a quantity, a time
		n := 2 * bytesOfValue
		if u, ok := v.Value().(*url.URL); ok {
			n += 2 * (len(u.Path) + len(u.RawPath) + len(u.Host) + len(u.RawQuery) + len(u.Fragment) + len(u.RawFragment))
		}
		return n
	}
}

// insert is the function by which a loop makes a map, entry by entry.
const insert = "cel.@mapInsert"

func entries(of traits.Sizer) int {
	n, _ := of.Size().(types.Int)
	return int(n)
}
