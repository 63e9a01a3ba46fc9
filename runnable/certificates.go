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

package runnable

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/config/webhook"
	"github.com/traas-stack/altershield-operator/internal/certificates"
)

// A list or watch is allowed by name, too, when it selects that name. Only
// creating cannot be restricted to it. To create a configuration anew is more
// than to keep one, but no more than to rewrite it.

// +kubebuilder:rbac:groups="",namespace=altershieldoperator-system,resources=secrets,resourceNames=altershieldoperator-webhook-server-cert,verbs=get;list;watch;update
// +kubebuilder:rbac:groups="",namespace=altershieldoperator-system,resources=secrets,verbs=create
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=altershieldoperator-mutating-webhook-configuration,verbs=get;list;watch;update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=altershieldoperator-validating-webhook-configuration,verbs=get;list;watch;update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,verbs=create
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get

const (
	// roundTimeout bounds one look with all it leads to.
	roundTimeout = 15 * time.Second
	// conflicts with other replicas are met by looking again at once, so many
	// times.
	conflicts = 5
	// afterWrite is when to look whether a write came to what it should.
	afterWrite = time.Second
	// recreateAfter is for how long a configuration has to be missing before
	// it is made again: an operator that is being uninstalled has ended by
	// then, and does not leave behind a webhook that nobody serves.
	recreateAfter = 30 * time.Second
	// adoptAgain is when to try again to own a configuration after a refusal.
	adoptAgain = time.Hour
	// writesEvery and writesAtOnce keep a quarrel with somebody who writes the
	// opposite from becoming a storm. Certificates that live for seconds need
	// more.
	writesEvery  = 5 * time.Second
	writesAtOnce = 10
)

// CertificatesOptions configure Certificates.
type CertificatesOptions struct {
	// Dir has a certificate from elsewhere, in the files CertName and KeyName,
	// which the webhook server reads by itself. With it, none is made here, and
	// the authorities in the webhook configurations are somebody else's.
	Dir, CertName, KeyName string
	// Namespace of the operator; Secret and Service in it are where the
	// certificates are stored and how API servers call the webhooks.
	Namespace, Secret, Service string
	// ServicePort of the service; 0 is 443.
	ServicePort int32
	// Mutating and Validating name the webhook configurations.
	Mutating, Validating string
	// Validity of serving certificates, and of their authorities; 0 is ten
	// times as long.
	Validity, AuthorityValidity time.Duration
	// RecreateAfter is for how long a configuration has to be missing before it
	// is made again; 0 is 30 seconds.
	RecreateAfter time.Duration
	Clock         clock.WithTicker
	Log           logr.Logger
	// OnServe is told when the certificate that is served expires.
	OnServe func(notAfter time.Time)
}

// Certificates keeps the webhooks' certificates in order, and the webhook
// configurations that have to know them. It runs on every replica: each serves,
// stores and injects by itself what the common Secret asks for, so that nothing
// hangs on one of them. Only the other content of the configurations, which
// differs between versions of the operator, is for the leader to restore.
type Certificates struct {
	o              CertificatesOptions
	policy         certificates.Policy
	configurations []certificates.Configuration
	client         client.Client
	changes        cache.Cache
	changed        chan struct{}
	elected        <-chan struct{}
	// A quarrel about one must not keep the other from being written.
	secretWrites, configurationWrites *rate.Limiter

	// serving is read by handshakes; covered once webhooks were seen to carry
	// its authority. What follows is only the loop's.
	serving atomic.Pointer[certificates.Serving]
	covered atomic.Bool
	known   []byte
	trust   certificates.Trust
	missing map[string]time.Time
	wrote   bool
	told    string
	// adoptAfter is when to try again what was refused.
	adoptAfter time.Time
	files      files
}

var (
	_ manager.Runnable               = &Certificates{}
	_ manager.LeaderElectionRunnable = &Certificates{}
)

// NewCertificates makes the task; SetupWithManager checks what it is to do.
func NewCertificates(o CertificatesOptions) *Certificates {
	if o.ServicePort == 0 {
		o.ServicePort = 443
	}
	if o.RecreateAfter == 0 {
		o.RecreateAfter = recreateAfter
	}
	policy := certificates.Policy{Hosts: certificates.ServiceHosts(o.Namespace, o.Service), Validity: o.Validity, Authority: o.AuthorityValidity}
	every := rate.Every(writesEvery)
	if o.Dir == "" {
		every = rate.Every(min(writesEvery, policy.LookEvery()))
	}
	return &Certificates{
		o:                   o,
		policy:              policy,
		changed:             make(chan struct{}, 1),
		missing:             map[string]time.Time{},
		files:               files{injectors: map[string]map[string]string{}, told: map[string]bool{}},
		secretWrites:        rate.NewLimiter(every, writesAtOnce),
		configurationWrites: rate.NewLimiter(every, writesAtOnce),
	}
}

// prepare checks what is asked for, and reads what the configurations have to be.
func (c *Certificates) prepare() error {
	if err := c.policy.Validate(); err != nil && c.o.Dir == "" {
		return fmt.Errorf("certificates of the webhooks: %w", err)
	}
	var err error
	c.configurations, err = certificates.NewConfigurations(webhook.Manifests, c.o.Mutating, c.o.Validating, certificates.Target{
		Namespace: c.o.Namespace, Service: c.o.Service, Port: c.o.ServicePort,
	})
	return err
}

// TLSOptions let the webhook server serve the certificate.
func (c *Certificates) TLSOptions() []func(*tls.Config) {
	return []func(*tls.Config){func(config *tls.Config) {
		config.MinVersion = tls.VersionTLS12
		if c.o.Dir == "" {
			config.GetCertificate = c.get
		}
	}}
}

// get is the certificate for a handshake.
func (c *Certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if s := c.serving.Load(); s != nil {
		return &s.Certificate, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// SetupWithManager adds the task and its readiness to the manager.
func (c *Certificates) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	err := c.prepare()
	if err != nil {
		return err
	}
	// Decisions are made on what is stored, not on a cache.
	if c.client, err = client.New(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), FieldOwner: v1alpha1.FieldManager,
	}); err != nil {
		return fmt.Errorf("certificates of the webhooks: %w", err)
	}
	// A cache of its own, of few objects' metadata: a missing right to watch
	// them delays what is done here, and nothing else.
	watched := c.watched()
	byObject := map[client.Object]cache.ByObject{}
	for _, object := range watched {
		byObject[object] = cache.ByObject{Field: fields.OneTermEqualSelector(metav1.ObjectNameField, object.GetName())}
	}
	if c.changes, err = cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		DefaultNamespaces: map[string]cache.Config{c.o.Namespace: {}}, ByObject: byObject, DefaultTransform: cache.TransformStripManagedFields(),
	}); err != nil {
		return fmt.Errorf("watch the certificates of the webhooks: %w", err)
	}
	for _, object := range watched {
		informer, err := c.changes.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch the certificates of the webhooks: %w", err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { c.wake() },
			UpdateFunc: func(any, any) { c.wake() },
			DeleteFunc: func(any) { c.wake() },
		}); err != nil {
			return fmt.Errorf("watch the certificates of the webhooks: %w", err)
		}
	}
	c.elected = mgr.Elected()
	if err := mgr.Add(c); err != nil || c.o.Dir != "" {
		return err
	}
	return mgr.AddReadyzCheck("certificate", c.Ready)
}

// watched are the objects that matter, by their metadata.
func (c *Certificates) watched() []client.Object {
	var objects []client.Object
	if c.o.Dir == "" {
		objects = append(objects, partial(corev1.SchemeGroupVersion.WithKind("Secret"), c.o.Namespace, c.o.Secret))
	}
	for _, configuration := range c.configurations {
		u := configuration.Object()
		objects = append(objects, partial(u.GroupVersionKind(), "", u.GetName()))
	}
	return objects
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

// Ready says whether API servers can call this replica: it has a certificate
// that has not expired, and its authority was seen in every webhook. That
// somebody alters them later is no reason to take the replica, which restores
// them, out of service.
func (c *Certificates) Ready(*http.Request) error {
	s := c.serving.Load()
	switch {
	case s == nil:
		return errors.New("there is no certificate yet")
	case !c.o.Clock.Now().Before(s.NotAfter()):
		return fmt.Errorf("the certificate expired at %s", s.NotAfter())
	case !c.covered.Load():
		return errors.New("the webhook configurations do not carry the certificate's authority yet")
	default:
		return nil
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

// leads says whether this replica is the leader. One that stops being it ends.
func (c *Certificates) leads() bool {
	select {
	case <-c.elected:
		return true
	default:
		return false
	}
}

// round brings everything up to date and says when to do so again.
func (c *Certificates) round(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	var err error
	c.wrote = false
	ensure, every := c.ensure, c.policy.LookEvery()
	if c.o.Dir != "" {
		ensure, every = c.ensureAround, lookAtFiles
	}
	for range conflicts {
		if err = ensure(ctx); err == nil || !isOutdated(err) {
			break
		}
	}
	switch {
	case err == nil:
		c.told = ""
	case errors.Is(ctx.Err(), context.Canceled):
	case err.Error() != c.told:
		c.told = err.Error()
		c.o.Log.Error(err, "keep the webhooks' certificates in order; trying again")
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

// observed is what there is.
type observed struct {
	// configurations that are there, in the order of the wanted ones; nil for
	// what is not.
	configurations []*unstructured.Unstructured
	// secret is nil when there is none.
	secret *corev1.Secret
	now    time.Time
}

// ensure observes, decides and applies.
func (c *Certificates) ensure(ctx context.Context) error {
	o, unseen := c.observe(ctx)
	if o == nil {
		return unseen
	}
	data := map[string][]byte(nil)
	if o.secret != nil {
		data = o.secret.Data
	}
	d, err := c.policy.Decide(certificates.Observation{Data: data, Serving: c.serving.Load(), Known: c.known, Trust: c.trust, Now: o.now})
	if err != nil {
		return err
	}
	if err := c.applySecret(ctx, o.secret, d); err != nil {
		return err
	}
	c.known = d.Bundle()
	c.serve(d, o.now)
	if unseen != nil {
		return unseen
	}
	var errs []error
	for i, configuration := range c.configurations {
		errs = append(errs, c.applyConfiguration(ctx, configuration, o.configurations[i], d.Bundle(), o.now))
	}
	return errors.Join(errs...)
}

// observe reads the configurations, and only then the Secret: updated as they
// were, they get no bundle that is older than the one they have. Where one cannot
// be read, nothing is known of what API servers know; what is stored is served
// all the same.
func (c *Certificates) observe(ctx context.Context) (*observed, error) {
	o := &observed{}
	var unseen error
	var bundles [][]byte
	if o.configurations, unseen = c.readConfigurations(ctx); unseen == nil {
		for _, live := range o.configurations {
			if live == nil {
				bundles = append(bundles, nil)
				continue
			}
			bundles = append(bundles, certificates.Bundles(live)...)
		}
	}
	secret := &corev1.Secret{}
	err := c.client.Get(ctx, types.NamespacedName{Namespace: c.o.Namespace, Name: c.o.Secret}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read secret %s: %w", c.o.Secret, err)
	}
	if err == nil {
		o.secret = secret
	}
	o.now = c.o.Clock.Now()
	c.trust = c.trust.Observe(bundles, o.now)
	return o, unseen
}

// readConfigurations are those that are there, in the order of the wanted ones;
// nil for what is not.
func (c *Certificates) readConfigurations(ctx context.Context) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	var unseen error
	for _, configuration := range c.configurations {
		live := configuration.Object()
		err := c.client.Get(ctx, client.ObjectKeyFromObject(live), live)
		switch {
		case apierrors.IsNotFound(err):
			live = nil
		case err != nil:
			unseen = errors.Join(unseen, fmt.Errorf("read webhook configuration %s: %w", live.GetName(), err))
		}
		all = append(all, live)
	}
	return all, unseen
}

// applySecret stores what was decided, unless somebody stored something since.
func (c *Certificates) applySecret(ctx context.Context, secret *corev1.Secret, d *certificates.Decision) error {
	if len(d.Changes) == 0 {
		return nil
	}
	if err := c.mayWrite(c.secretWrites); err != nil {
		return err
	}
	if secret == nil {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.o.Namespace, Name: c.o.Secret},
			Type:       corev1.SecretTypeTLS,
			Data:       d.Data,
		}
		if err := c.client.Create(ctx, secret); err != nil {
			return fmt.Errorf("create secret %s: %w", c.o.Secret, err)
		}
	} else {
		secret = secret.DeepCopy()
		secret.Data = d.Data
		if err := c.client.Update(ctx, secret); err != nil {
			return fmt.Errorf("update secret %s: %w", c.o.Secret, err)
		}
	}
	c.wrote = true
	c.o.Log.Info("stored certificates", "secret", c.o.Secret, "changes", strings.Join(d.Changes, "; "))
	return nil
}

// serve takes up the certificate that is to be served.
func (c *Certificates) serve(d *certificates.Decision, now time.Time) {
	current := c.serving.Load()
	next := c.policy.Choose(d.Stored, current, c.trust, now)
	if c.trust.Covers(next) {
		c.covered.Store(true)
	}
	if next.Same(current) {
		return
	}
	c.serving.Store(next)
	c.o.Log.Info("serving a certificate", "authority", next.Root.Subject.CommonName, "expires", next.NotAfter())
	if c.o.OnServe != nil {
		c.o.OnServe(next.NotAfter())
	}
}

// applyConfiguration injects the bundle, and on the leader restores the rest.
func (c *Certificates) applyConfiguration(ctx context.Context, want certificates.Configuration, live *unstructured.Unstructured, bundle []byte, now time.Time) error {
	name := nameOf(want)
	if live == nil {
		if !c.overdue(name, now) {
			return nil
		}
		return c.create(ctx, want.Create(bundle), name)
	}
	delete(c.missing, name)
	next, changed := certificates.Inject(live, bundle)
	if c.leads() {
		var err error
		if next, changed, err = want.Restore(live, bundle); err != nil {
			return fmt.Errorf("restore %s: %w", name, err)
		}
	}
	return c.update(ctx, live, next, changed, name)
}

func nameOf(configuration certificates.Configuration) string {
	object := configuration.Object()
	return object.GetKind() + " " + object.GetName()
}

// update writes a configuration if it is changed or, on the leader, nobody's: then
// it becomes the namespace's, as one that is made here. Without that it would be
// left behind when only the namespace is deleted, and deny releases that nobody
// can allow any more.
func (c *Certificates) update(ctx context.Context, live, next *unstructured.Unstructured, changed bool, name string) error {
	if live.GetDeletionTimestamp() != nil {
		return nil
	}
	var unread error
	adopted := false
	if c.leads() && !c.o.Clock.Now().Before(c.adoptAfter) {
		var ns *metav1.PartialObjectMetadata
		if ns, unread = c.namespace(ctx); ns != nil {
			adopted = certificates.Adopt(next, ns.Name, ns.UID)
		}
	}
	if !changed && !adopted {
		return unread
	}
	if err := c.mayWrite(c.configurationWrites); err != nil {
		return err
	}
	// Refused if it is no longer as it was before the Secret was read.
	err := c.client.Update(ctx, next)
	if apierrors.IsForbidden(err) && adopted {
		// Where owners are guarded (OwnerReferencesPermissionEnforcement), only
		// who may delete an object gives it one. The rest goes without.
		c.adoptAfter = c.o.Clock.Now().Add(adoptAgain)
		c.o.Log.Info("the namespace cannot be made an owner of the webhook configurations: when uninstalling, delete them by hand", "configuration", name, "cause", err.Error())
		if !changed {
			return nil
		}
		next.SetOwnerReferences(live.GetOwnerReferences())
		err = c.client.Update(ctx, next)
	}
	if err != nil {
		return fmt.Errorf("update %s: %w", name, err)
	}
	c.wrote = true
	c.o.Log.Info("updated a webhook configuration", "configuration", name)
	return unread
}

// namespace of the operator; nil when it cannot be read, or is not there.
func (c *Certificates) namespace(ctx context.Context) (*metav1.PartialObjectMetadata, error) {
	ns := partial(corev1.SchemeGroupVersion.WithKind("Namespace"), "", c.o.Namespace)
	if err := c.client.Get(ctx, client.ObjectKeyFromObject(ns), ns); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read the operator's namespace: %w", err)
	}
	return ns, nil
}

// overdue notes that a configuration is missing, and says whether it is time, and
// for this replica, to make it again.
func (c *Certificates) overdue(name string, now time.Time) bool {
	since, known := c.missing[name]
	if !known {
		c.missing[name] = now
		c.o.Log.Info("a webhook configuration is missing", "configuration", name)
	}
	return c.leads() && known && now.Sub(since) >= c.o.RecreateAfter
}

// create makes a configuration that somebody removed. It is the namespace's, and
// goes with it.
func (c *Certificates) create(ctx context.Context, object *unstructured.Unstructured, name string) error {
	ns, err := c.namespace(ctx)
	if err != nil || ns == nil || ns.DeletionTimestamp != nil {
		return err
	}
	if err := c.mayWrite(c.configurationWrites); err != nil {
		return err
	}
	certificates.Adopt(object, ns.Name, ns.UID)
	if err := c.client.Create(ctx, object); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	c.wrote = true
	delete(c.missing, name)
	c.o.Log.Info("made a webhook configuration that was missing", "configuration", name)
	return nil
}

// mayWrite keeps the rate of writes bounded.
func (c *Certificates) mayWrite(writes *rate.Limiter) error {
	if !writes.AllowN(c.o.Clock.Now(), 1) {
		return errors.New("too many writes: does somebody else keep the webhooks' Secret or configurations, too?")
	}
	return nil
}
