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
	// maxWritten is the number of remembered objects. Each takes some 300 bytes.
	maxWritten = 10_000
	// writtenFor is how long an object is remembered. A cache that is further behind has
	// a broken watch, and each write from it conflicts.
	writtenFor = 10 * time.Minute
	// forgetEvery is the interval in which expired objects are forgotten.
	forgetEvery = time.Minute
)

// ownWrites is a client that reads its own writes. It reads from the caches. While a
// cache lacks this process' last write of a ChangeWorkload or a ChangePod, it reads from
// the API server: a repeated decision from the old state would call AlterShield Server a
// second time. It waits for nothing, so that a stuck write or a lost event delays no
// other read. Lists are always from the cache.
type ownWrites struct {
	client.Client
	live  client.Reader
	clock clock.PassiveClock
	mu    sync.Mutex
	// written has the resource version of each object after the last write. It drops an
	// expired one only when that one is read.
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

// keyOfWritten returns the key of an object; false for kinds that are not remembered.
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
		return fmt.Errorf("get %s %s, because the cache is behind: %w", key.kind, name, err)
	}
	return nil
}

// older reports whether a resource version is older than another one. The resource versions
// of one kind are ordered, also after an object was recreated.
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
	// The answer to the first of two concurrent writes may come last.
	if known, ok := c.written.Get(key); !ok || older(known.(string), o.GetResourceVersion()) { //nolint:errcheck // nothing else is in there
		c.written.Add(key, o.GetResourceVersion(), writtenFor)
	}
	return nil
}

// forget drops expired objects.
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
