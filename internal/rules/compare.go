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
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// comparison compares values until it has looked at too many: lists within lists may hold the
// same list twice at each level, so that their equality has no end in time.
type comparison struct{ left int }

// answer is a comparison's result, or an error when it looked at too many values.
func (c *comparison) answer(result bool) ref.Val {
	if c.left < 0 {
		return types.NewErr("values are too large to be compared: at most %d values and bytes of strings by 64 are allowed", maxCompared)
	}
	return types.Bool(result)
}

func (c *comparison) equal(a, b ref.Val) bool {
	if c.left--; c.left < 0 {
		return false
	}
	switch x := a.(type) {
	case types.String:
		if y, ok := b.(types.String); ok && len(x) == len(y) {
			c.left -= len(x) / 64
			return c.left >= 0 && x == y
		}
		return false
	case traits.Lister:
		y, ok := b.(traits.Lister)
		return ok && c.equalLists(x, y)
	case traits.Mapper:
		y, ok := b.(traits.Mapper)
		return ok && c.equalMaps(x, y)
	case *types.Optional:
		y, ok := b.(*types.Optional)
		if !ok || !x.HasValue() || !y.HasValue() {
			return ok && x.HasValue() == y.HasValue()
		}
		return c.equal(x.GetValue(), y.GetValue())
	default:
		return types.Equal(a, b) == types.True
	}
}

func (c *comparison) equalLists(a, b traits.Lister) bool {
	if a.Size() != b.Size() {
		return false
	}
	for i := range entries(a) {
		if !c.equal(a.Get(types.Int(i)), b.Get(types.Int(i))) {
			return false
		}
	}
	return true
}

func (c *comparison) equalMaps(a, b traits.Mapper) bool {
	if a.Size() != b.Size() {
		return false
	}
	c.left -= entries(a) // what is iterated over is copied
	for it := a.Iterator(); c.left >= 0 && it.HasNext() == types.True; {
		key := it.Next()
		other, found := b.Find(key)
		if !found || !c.equal(a.Get(key), other) {
			return false
		}
	}
	return c.left >= 0
}

// within reports whether a list contains an equal value.
func (c *comparison) within(v ref.Val, list traits.Lister) bool {
	for i := range entries(list) {
		if c.left < 0 || c.equal(v, list.Get(types.Int(i))) {
			return c.left >= 0
		}
	}
	return false
}

func equal(args ...ref.Val) ref.Val {
	c := &comparison{left: maxCompared}
	return c.answer(c.equal(args[0], args[1]))
}

func unequal(args ...ref.Val) ref.Val {
	c := &comparison{left: maxCompared}
	return c.answer(!c.equal(args[0], args[1]))
}

func in(v, of ref.Val) ref.Val {
	switch of := of.(type) {
	case traits.Lister:
		c := &comparison{left: maxCompared}
		return c.answer(c.within(v, of))
	case traits.Mapper:
		_, found := of.Find(v)
		return types.Bool(found)
	default:
		return types.MaybeNoSuchOverloadErr(of)
	}
}

func setContains(all, some ref.Val) ref.Val { return ofSets(all, some, (*comparison).contains) }

func setEquivalent(a, b ref.Val) ref.Val {
	return ofSets(a, b, func(c *comparison, x, y traits.Lister) bool { return c.contains(x, y) && c.contains(y, x) })
}

func setIntersects(a, b ref.Val) ref.Val {
	return ofSets(a, b, func(c *comparison, x, y traits.Lister) bool {
		for i := range entries(y) {
			if c.within(y.Get(types.Int(i)), x) {
				return true
			}
		}
		return false
	})
}

// contains reports whether each value of a list is in the other one.
func (c *comparison) contains(all, some traits.Lister) bool {
	for i := range entries(some) {
		if !c.within(some.Get(types.Int(i)), all) {
			return false
		}
	}
	return true
}

func ofSets(a, b ref.Val, compare func(*comparison, traits.Lister, traits.Lister) bool) ref.Val {
	x, ok := a.(traits.Lister)
	y, also := b.(traits.Lister)
	if !ok || !also {
		return types.MaybeNoSuchOverloadErr(a)
	}
	c := &comparison{left: maxCompared}
	return c.answer(compare(c, x, y))
}

func entries(of traits.Sizer) int {
	n, _ := of.Size().(types.Int)
	return int(n)
}
