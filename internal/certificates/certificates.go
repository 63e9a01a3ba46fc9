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

// Package certificates keeps the webhooks' certificates in order, and the webhook configurations
// that have to know them. It runs on every replica.
//
//   - certificates.go: when to look, and again
//   - made.go: certificates that are made here, and shared in a Secret
//   - secret.go: what the Secret has to contain, and which certificate a replica serves; pure,
//     except that keys are made at random
//   - files.go: a certificate from elsewhere, in files
//   - configurations.go: what the webhook configurations have to look like; pure
//   - apply.go: reads and writes them
//   - missing.go: reports those that stay missing
//
// github.com/open-policy-agent/cert-controller is not an alternative: it replaces the authority
// and the certificate in one write, so that until injection, caches and mounted files have
// caught up, calls fail; and an API server that cannot verify the webhook of a blocked workload
// refuses its override, too.
package certificates

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/options"
)

const (
	// roundTimeout bounds one look with all it leads to.
	roundTimeout = 15 * time.Second
	// conflicts with other replicas are met by looking again at once, so many
	// times.
	conflicts = 5
	// afterWrite is when to look whether a write came to what it should.
	afterWrite = time.Second
)

// Options configure Certificates.
type Options struct {
	options.Certificates
	// Configurations of the webhooks, as they have to be but for what the installation
	// adds.
	Configurations []runtime.Object
	// ServicePort of the service; 0 is 443.
	ServicePort int32
	// AuthorityValidity is that of authorities; 0 is ten times as long as that of
	// serving certificates.
	AuthorityValidity time.Duration
	// RecreateAfter is for how long a configuration has to be missing before it
	// is made again; 0 is 30 seconds.
	RecreateAfter time.Duration
	Clock         clock.WithTicker
	Log           logr.Logger
	// OnMissing is called with the kind of each webhook configuration, and whether it is
	// missing, whenever they are looked at. May be nil.
	OnMissing func(kind string, missing bool)
	// OnServe is called with the time when the served certificate expires.
	OnServe func(notAfter time.Time)
}

// source is where the certificate comes from: made or files.
type source interface {
	// ensure observes, decides and applies: what is served, and the webhook
	// configurations.
	ensure(ctx context.Context) error
	// lookEvery is how often to do that when nothing changes.
	lookEvery() time.Duration
}

// Certificates keeps certificates and webhook configurations in order.
type Certificates struct {
	*configurations
	source
	// made is the source if certificates are made here, and nil otherwise.
	made    *made
	report  *missingReport
	changes cache.Cache
	changed chan struct{}
}

var (
	_ manager.Runnable               = &Certificates{}
	_ manager.LeaderElectionRunnable = &Certificates{}
)

// New makes the task.
func New(o Options) (*Certificates, error) {
	if o.ServicePort == 0 {
		o.ServicePort = 443
	}
	if o.RecreateAfter == 0 {
		o.RecreateAfter = recreateAfter
	}
	shared, err := newConfigurations(o)
	c := &Certificates{configurations: shared, changed: make(chan struct{}, 1)}
	if o.Dir != "" {
		c.source = &files{configurations: shared, injectors: map[string]map[string]string{}}
	} else {
		c.made = newMade(shared)
		c.source = c.made
	}
	return c, err
}

// GetCertificate gives the webhook server what it serves; nil where it reads its files by itself.
func (c *Certificates) GetCertificate() func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c.made == nil {
		return nil
	}
	return c.made.get
}

// SetupWithManager adds the task and its readiness to the manager.
func (c *Certificates) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	// Decisions are made on what is stored, not on a cache.
	var err error
	if c.client, err = client.New(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), FieldOwner: v1alpha1.FieldManager,
	}); err != nil {
		return fmt.Errorf("certificates of the webhooks: %w", err)
	}
	if err := c.watch(ctx, mgr); err != nil {
		return fmt.Errorf("watch the certificates of the webhooks: %w", err)
	}
	c.elected = mgr.Elected()
	c.report = &missingReport{client: mgr.GetClient(), recorder: mgr.GetEventRecorder("altershield-operator"), namespace: c.o.Namespace, clock: c.o.Clock}
	if err := mgr.Add(c); err != nil || c.made == nil {
		return err
	}
	return mgr.AddReadyzCheck("certificate", c.made.ready)
}

// watch wakes the task when one of the objects that matter changes. The cache is
// one of its own, of few objects' metadata: a missing right to watch them delays
// what is done here, and nothing else.
func (c *Certificates) watch(ctx context.Context, mgr ctrl.Manager) error {
	var watched []client.Object
	if c.made != nil {
		watched = append(watched, c.made.secret())
	}
	for _, want := range c.wanted {
		u := want.Object()
		watched = append(watched, partial(u.GroupVersionKind(), "", u.GetName()))
	}
	byObject := map[client.Object]cache.ByObject{}
	for _, object := range watched {
		byObject[object] = cache.ByObject{Field: fields.OneTermEqualSelector(metav1.ObjectNameField, object.GetName())}
	}
	var err error
	if c.changes, err = cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		DefaultNamespaces: map[string]cache.Config{c.o.Namespace: {}}, ByObject: byObject, DefaultTransform: cache.TransformStripManagedFields(),
	}); err != nil {
		return err
	}
	for _, object := range watched {
		informer, err := c.changes.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { c.wake() },
			UpdateFunc: func(any, any) { c.wake() },
			DeleteFunc: func(any) { c.wake() },
		}); err != nil {
			return err
		}
	}
	return nil
}

func partial(gvk schema.GroupVersionKind, namespace, name string) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	m.SetGroupVersionKind(gvk)
	return m
}

// wake makes the loop look at once, or once more.
func (c *Certificates) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (c *Certificates) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (c *Certificates) Start(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return c.changes.Start(ctx) })
	tasks.Go(func() error { return c.loop(ctx) })
	return tasks.Wait()
}

// loop looks by the clock, when something changes, and when this replica
// becomes the leader.
func (c *Certificates) loop(ctx context.Context) error {
	elected := c.elected
	for {
		timer := c.o.Clock.NewTimer(c.round(ctx))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-c.changed:
		case <-elected:
			elected = nil // A closed channel would wake the loop forever.
		case <-timer.C():
		}
		timer.Stop()
	}
}

// errTooMany says that this and another program may write the same.
var errTooMany = errors.New("too many writes: does another program write the webhooks' Secret or configurations, too?")

// round brings everything up to date and says when to do so again.
func (c *Certificates) round(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	now, every, err := c.o.Clock.Now(), c.lookEvery(), errTooMany
	c.wrote = false
	if c.writes.TokensAt(now) >= 1 {
		for range conflicts {
			if err = c.ensure(ctx); err == nil || !isOutdated(err) {
				break
			}
		}
	}
	if c.wrote {
		c.writes.AllowN(now, 1)
	}
	// One that may still be made again is not told, and says nothing of what was.
	if lasting := c.lasting(); err == nil && c.report != nil && c.leads() && len(lasting) == len(c.missing) {
		err = c.report.tell(ctx, lasting)
	}
	if !errors.Is(ctx.Err(), context.Canceled) && c.isNew("", err) {
		c.o.Log.Error(err, "maintain the webhooks' certificates; trying again")
	}
	switch {
	case err != nil, c.wrote:
		return min(afterWrite, every)
	case len(c.missing) > 0:
		return min(c.o.RecreateAfter, every)
	default:
		return every
	}
}

// isOutdated says that a write was refused because somebody else was quicker.
func isOutdated(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}
