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

// replays remembers signatures while their timestamp is accepted, because the protocol has no
// nonce. Each replica has its own replays, of bounded size. If it is full, it drops the
// signature that was not seen for the longest time. The Recorder and the Rollbacker recognize a
// repetition that replays misses. It is safe for concurrent use.
type replays struct {
	clock clock.PassiveClock
	// used are the signatures of requests that are done.
	used *cache.LRUExpireCache
	// turns makes requests with the same signature wait for each other.
	turns *network.Places
}

func newReplays(size int, c clock.PassiveClock) *replays {
	return &replays{clock: c, used: cache.NewLRUExpireCacheWithClock(size, c), turns: network.NewPlaces(math.MaxInt64, 1)}
}

// begin lets a request through, unless its signature was used or has expired. The expiry is
// checked here again, because the body may arrive long after the headers were checked, and the
// signature may have been used and forgotten meanwhile. If another request with the signature
// is under way, begin waits for its end. The server sends a request again when the connection
// breaks without an answer, and the second request counts if the first one fails. The caller
// calls end when the request is done. If it was not handled, the same request may come again.
// The error is the error of the context.
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
