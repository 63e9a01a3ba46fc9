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

package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	lru "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/metrics"
)

const (
	// maxWritten bounds how many objects are remembered. Each takes some 300 bytes.
	maxWritten = 10_000
	// writtenFor is for how long. A cache that is further behind is a broken watch,
	// and all that is written from it conflicts.
	writtenFor = 10 * time.Minute
	// forgetEvery is how often those are forgotten of which that is over.
	forgetEvery = time.Minute
)

// ownWrites is a client that does not decide twice from what it has changed itself.
// It reads from the caches. Where the cache does not show yet what this process wrote
// of a ChangeWorkload or a ChangePod, it asks the API server: a decision made again
// from the state before would call AlterShield Server a second time. It waits for
// nothing, so that no write that is stuck and no event that is lost holds up others.
// Lists are from the cache as it is.
type ownWrites struct {
	client.Client
	live  client.Reader
	clock clock.PassiveClock
	mu    sync.Mutex
	// written has the resource version that an object had after the last write. By
	// itself it drops what has expired only when that is asked for.
	written *lru.LRUExpireCache
	forgot  time.Time
}

type writtenKey struct {
	kind string
	types.NamespacedName
}

func newOwnWrites(c client.Client, live client.Reader, clk clock.PassiveClock) *ownWrites {
	return &ownWrites{Client: c, live: live, clock: clk, written: lru.NewLRUExpireCacheWithClock(maxWritten, clk)}
}

// keyOfWritten is empty for objects that are not remembered.
func keyOfWritten(o client.Object, name types.NamespacedName) (writtenKey, bool) {
	switch o.(type) {
	case *v1alpha1.ChangeWorkload:
		return writtenKey{"ChangeWorkload", name}, true
	case *v1alpha1.ChangePod:
		return writtenKey{"ChangePod", name}, true
	default:
		return writtenKey{}, false
	}
}

// Get implements client.Client.
func (c *ownWrites) Get(ctx context.Context, name client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := c.Client.Get(ctx, name, o, opts...)
	key, ok := keyOfWritten(o, name)
	if !ok || client.IgnoreNotFound(err) != nil {
		return err
	}
	found, ok := c.written.Get(key)
	if !ok {
		return err
	}
	if err == nil && !older(o.GetResourceVersion(), found) {
		return nil
	}
	metrics.StaleRead(key.kind)
	if err := c.live.Get(ctx, name, o); err != nil {
		return fmt.Errorf("get %s %s, of which the cache is behind: %w", key.kind, name, err)
	}
	return nil
}

// older compares resource versions. Those of one kind are in order, also of objects
// that had the same name one after the other.
func older(version string, than any) bool {
	order, err := resourceversion.CompareResourceVersion(version, than.(string)) //nolint:errcheck // nothing else is in there
	return err == nil && order < 0
}

func (c *ownWrites) remember(o client.Object, err error) error {
	if err != nil {
		return err
	}
	key, ok := keyOfWritten(o, client.ObjectKeyFromObject(o))
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
	// Of two writes at once the answer to the first may come last.
	if known, ok := c.written.Get(key); !ok || older(known.(string), o.GetResourceVersion()) { //nolint:errcheck // nothing else is in there
		c.written.Add(key, o.GetResourceVersion(), writtenFor)
	}
	return nil
}

// forget drops what has expired.
func (c *ownWrites) forget() {
	now := c.clock.Now()
	if now.Sub(c.forgot) < forgetEvery {
		return
	}
	c.forgot = now
	kept := map[any]bool{}
	for _, key := range c.written.Keys() {
		kept[key] = true
	}
	c.written.RemoveAll(func(key any) bool { return !kept[key] })
}

// Create implements client.Client.
func (c *ownWrites) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	return c.remember(o, c.Client.Create(ctx, o, opts...))
}

// Update implements client.Client.
func (c *ownWrites) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	return c.remember(o, c.Client.Update(ctx, o, opts...))
}

// Patch implements client.Client.
func (c *ownWrites) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return c.remember(o, c.Client.Patch(ctx, o, patch, opts...))
}

// Status implements client.Client.
func (c *ownWrites) Status() client.SubResourceWriter { return &ownStatus{c.Client.Status(), c} }

type ownStatus struct {
	client.SubResourceWriter
	of *ownWrites
}

// Update implements client.SubResourceWriter.
func (s *ownStatus) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	return s.of.remember(o, s.SubResourceWriter.Update(ctx, o, opts...))
}

// Patch implements client.SubResourceWriter.
func (s *ownStatus) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	return s.of.remember(o, s.SubResourceWriter.Patch(ctx, o, patch, opts...))
}
