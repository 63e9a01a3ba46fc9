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
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"

	"github.com/traas-stack/altershield-operator/internal/network"
)

// replays remembers signatures for as long as their timestamp is accepted,
// because the protocol has no nonce. It is of one replica and of bounded size;
// when it is full, the signature goes that was not seen for longest. A repetition
// that it misses is recognized as taken before by the Recorder and by the Rollbacker.
// Safe for concurrent use.
type replays struct {
	clock clock.PassiveClock
	// used are the signatures of requests that were dealt with.
	used *cache.LRUExpireCache
	// turns let requests with one signature be dealt with one after the other.
	turns *network.Places
}

func newReplays(size int, c clock.PassiveClock) *replays {
	return &replays{clock: c, used: cache.NewLRUExpireCacheWithClock(size, c), turns: network.NewPlaces(math.MaxInt64, 1)}
}

// begin lets a request be dealt with, unless its signature was used or has expired: a
// request may have been checked long before its body was read, and by now the signature may
// have been used and forgotten. While another request that has it is being dealt with, its
// outcome is awaited: the server sends a request again when the connection breaks before an
// answer, and that one has to do where the first fails. The request is dealt with once end is
// called; unless it was handled, the same one may come again. The error is that of the
// context.
func (r *replays) begin(ctx context.Context, sign string, expires time.Time) (end func(handled bool), fresh bool, err error) {
	release, err := r.turns.Take(ctx, sign, 1)
	if err != nil {
		return nil, false, err
	}
	if _, used := r.used.Get(sign); used || expires.Before(r.clock.Now()) {
		release()
		return nil, false, nil
	}
	return func(handled bool) {
		if handled {
			r.used.Add(sign, struct{}{}, expires.Sub(r.clock.Now()))
		}
		release()
	}, true, nil
}
