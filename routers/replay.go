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

package routers

import (
	"container/heap"
	"sync"
	"time"
)

// replayCache remembers signatures for as long as their timestamp is accepted,
// because the protocol has no nonce. It is of one replica and of bounded size:
// what it misses is recognized by the Recorder as recorded before. Safe for
// concurrent use.
type replayCache struct {
	max int

	mu     sync.Mutex
	bySign map[string]*replayMark
	// next has the mark that expires first on top.
	next replayHeap
}

// replayMark is one signature that was seen.
type replayMark struct {
	sign    string
	expires time.Time
	index   int // in the heap
}

func newReplayCache(size int) *replayCache {
	return &replayCache{max: size, bySign: map[string]*replayMark{}}
}

// mark remembers a signature until it expires. It is not fresh when it is known
// or has expired: a request may have been checked long before its body was
// read, and by now the signature may have been used and forgotten.
func (c *replayCache) mark(sign string, now, expires time.Time) (mark *replayMark, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.next) > 0 && c.next[0].expires.Before(now) {
		c.remove(c.next[0])
	}
	if _, known := c.bySign[sign]; known || expires.Before(now) {
		return nil, false
	}
	for len(c.next) >= c.max {
		c.remove(c.next[0])
	}
	mark = &replayMark{sign: sign, expires: expires}
	c.bySign[sign] = mark
	heap.Push(&c.next, mark)
	return mark, true
}

// forget takes a mark back, so that the same request may come again.
func (c *replayCache) forget(mark *replayMark) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// It may be gone, and even replaced by another one, when the cache was full.
	if c.bySign[mark.sign] == mark {
		c.remove(mark)
	}
}

func (c *replayCache) remove(mark *replayMark) {
	delete(c.bySign, mark.sign)
	heap.Remove(&c.next, mark.index)
}

// replayHeap implements heap.Interface.
type replayHeap []*replayMark

func (h replayHeap) Len() int           { return len(h) }
func (h replayHeap) Less(i, j int) bool { return h[i].expires.Before(h[j].expires) }

func (h replayHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *replayHeap) Push(x any) {
	mark := x.(*replayMark) //nolint:errcheck // the heap holds nothing else
	mark.index = len(*h)
	*h = append(*h, mark)
}

// Pop implements heap.Interface.
func (h *replayHeap) Pop() any {
	last := len(*h) - 1
	mark := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return mark
}
