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
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
)

// replayCache remembers signatures for as long as their timestamp is accepted,
// because the protocol has no nonce. It is of one replica and of bounded size;
// when it is full, the signature goes that was not seen for longest. What it
// misses is recognized as taken before by the Recorder and by the Rollbacker.
// Safe for concurrent use.
type replayCache struct {
	clock clock.PassiveClock
	// mu makes one step of looking and remembering.
	mu sync.Mutex
	// marks are *replayMark by signature.
	marks *cache.LRUExpireCache
}

// replayMark is one signature that was seen.
type replayMark struct {
	sign string
	// over is closed once its request is dealt with, or forgotten.
	over chan struct{}
}

// end lets those go on that wait for the outcome, once.
func (m *replayMark) end() {
	select {
	case <-m.over:
	default:
		close(m.over)
	}
}

func newReplayCache(size int, c clock.PassiveClock) *replayCache {
	return &replayCache{clock: c, marks: cache.NewLRUExpireCacheWithClock(size, c)}
}

// mark remembers a signature until it expires. It is not fresh when it was dealt
// with or has expired: a request may have been checked long before its body was
// read, and by now the signature may have been used and forgotten. While the
// request that had it first is being dealt with, its outcome is awaited: the server
// sends a request again when the connection breaks before an answer, and that one
// has to do where the first fails. The error is that of the context.
func (c *replayCache) mark(ctx context.Context, sign string, expires time.Time) (mark *replayMark, fresh bool, err error) {
	for {
		mark, fresh, first := c.tryMark(sign, expires)
		if first == nil {
			return mark, fresh, nil
		}
		select {
		case <-first:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// tryMark is one step of mark; first ends with the request to be awaited.
func (c *replayCache) tryMark(sign string, expires time.Time) (mark *replayMark, fresh bool, first <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := expires.Sub(c.clock.Now())
	if left < 0 {
		return nil, false, nil
	}
	if known, ok := c.marks.Get(sign); ok {
		over := known.(*replayMark).over //nolint:errcheck // all of them are
		select {
		case <-over:
			return nil, false, nil
		default:
			return nil, false, over
		}
	}
	mark = &replayMark{sign: sign, over: make(chan struct{})}
	c.marks.Add(sign, mark, left)
	return mark, true, nil
}

// done says that the request was dealt with: from now on its signature is refused.
func (c *replayCache) done(mark *replayMark) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mark.end()
}

// forget takes a mark back, so that the same request may come again.
func (c *replayCache) forget(mark *replayMark) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// It may be gone, and even replaced by another one, when the cache was full.
	if current, _ := c.marks.Get(mark.sign); current == mark {
		c.marks.Remove(mark.sign)
	}
	mark.end()
}
