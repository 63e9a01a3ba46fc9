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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
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
	// afterWrite is when to look whether a write came to what it should, and first after a
	// failure; it doubles with each failure that follows.
	afterWrite = time.Second
)

// Options configure Certificates.
type Options struct {
	options.Certificates
	// Configurations of the webhooks, as they have to be without what the installation
	// adds.
	Configurations []runtime.Object
	// ServicePort of the service; 0 is 443.
	ServicePort int32
	// AuthorityValidity is that of authorities; 0 is ten times as long as that of
	// serving certificates.
	AuthorityValidity time.Duration
	// RecreateAfter is for how long a configuration has to be missing before it
	// is recreated; 0 is 30 seconds.
	RecreateAfter time.Duration
	// LookEvery is how often to look when nothing changes, unless certificates live so short
	// that it has to be more often; 0 is 10 seconds. A watch would need the right to it, and a
	// cache, for what hardly ever changes.
	LookEvery time.Duration
	Clock     clock.WithTicker
	Log       logr.Logger
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
	made   *made
	report *missingReport
	// failures are the rounds that failed since the last one that did not.
	failures int
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
	if o.LookEvery == 0 {
		o.LookEvery = 10 * time.Second
	}
	shared, err := newConfigurations(o)
	c := &Certificates{configurations: shared}
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
func (c *Certificates) SetupWithManager(mgr ctrl.Manager) error {
	// Decisions are made on what is stored, not on a cache.
	var err error
	if c.client, err = client.New(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), FieldOwner: v1alpha1.FieldManager,
	}); err != nil {
		return fmt.Errorf("certificates of the webhooks: %w", err)
	}
	c.elected = mgr.Elected()
	c.report = &missingReport{
		client: mgr.GetClient(), recorder: mgr.GetEventRecorder("altershield-operator"), namespace: c.o.Namespace, clock: c.o.Clock,
	}
	if err := mgr.Add(c); err != nil || c.made == nil {
		return err
	}
	return mgr.AddReadyzCheck("certificate", c.made.ready)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (c *Certificates) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable: it looks by the clock, and when this replica becomes the
// leader.
func (c *Certificates) Start(ctx context.Context) error {
	elected := c.elected
	for {
		timer := c.o.Clock.NewTimer(c.round(ctx))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
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
	// A configuration that may still be recreated is not reported, and changes no report.
	if lasting := c.lasting(); err == nil && c.report != nil && c.leads() && len(lasting) == len(c.missing) {
		err = c.report.tell(ctx, lasting)
	}
	if !errors.Is(ctx.Err(), context.Canceled) && c.isNew("", err) {
		c.o.Log.Error(err, "maintain the webhooks' certificates; trying again")
	}
	if err != nil {
		c.failures++
		return min(afterWrite<<min(c.failures-1, 10), every)
	}
	c.failures = 0
	if c.wrote {
		return min(afterWrite, every)
	}
	return every
}

// isOutdated says that a write was refused because another replica was quicker.
func isOutdated(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}
