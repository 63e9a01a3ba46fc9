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

// Command manager is the AlterShield Operator.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/traas-stack/altershield-operator/controllers"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/certificates"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/errand"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/identity"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/options"
	"github.com/traas-stack/altershield-operator/internal/pages"
	"github.com/traas-stack/altershield-operator/internal/servertime"
	"github.com/traas-stack/altershield-operator/internal/verify"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/routers"
	"github.com/traas-stack/altershield-operator/runnable"
	"github.com/traas-stack/altershield-operator/webhooks"
)

// The linker sets these.
var (
	version = "dev"
	commit  = "unknown"
)

// +kubebuilder:rbac:groups="",namespace=altershieldoperator-system,resources=events,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=altershieldoperator-system,resources=leases,resourceNames=altershield-operator,verbs=get;update
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

func main() {
	if errand.Asked(os.Args[1:]) {
		logTo(zap.New())
		end(errand.Run(ctrl.SetupSignalHandler(), os.Args[1:], errand.Default(controllers.NewScheme(), userAgent())))
		return
	}
	o, err := options.Parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err == nil && o.PrintVersion:
		fmt.Printf("altershield-operator %s (commit %s)\n", version, commit)
		return
	case err == nil:
		logTo(zap.New(zap.UseFlagOptions(&o.Log)))
		ctrl.Log.Info("starting", append([]any{"version", version, "commit", commit}, o.Summary()...)...)
		err = run(ctrl.SetupSignalHandler(), o)
	}
	end(err)
}

// end prints an error, if any, and exits with its code.
func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "altershield-operator:", err)
		code := 1
		if refusal := (errand.Refusal{}); errors.As(err, &refusal) {
			code = refusal.ExitCode()
		}
		os.Exit(code)
	}
}

func userAgent() string { return "altershield-operator/" + version }

// logTo sets the logger of the manager. The standard logger writes to it, too: the servers
// of webhooks and metrics log TLS handshakes that fail there.
func logTo(l logr.Logger) {
	ctrl.SetLogger(l)
	slog.SetDefault(slog.New(logr.ToSlogHandler(l.WithName("http"))))
}

func run(ctx context.Context, o *options.Options) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the cluster (--kubeconfig, $KUBECONFIG or in-cluster): %w", err)
	}
	config.UserAgent = userAgent()
	config.Wrap(pages.Limit)
	self, err := identity.Self(ctx, config)
	if err != nil {
		return err
	}
	tokens := o.Tokens(ctrl.Log.WithName("token"))
	server, err := verify.Connect(ctx, config, verify.ServerOptions{URL: o.ServerURL, Tokens: tokens, Registration: o.Registration})
	if err != nil {
		return err
	}
	serverClock := servertime.Follow(config, clock.RealClock{})
	kinds := workload.Defended()
	certs, err := certificates.New(certificates.Options{
		Certificates: o.Certificates, Configurations: webhooks.Configurations(kinds),
		Clock: clock.RealClock{}, Log: ctrl.Log.WithName("certificates"),
		OnServe: metrics.WebhookCertificate, OnMissing: metrics.WebhookConfigurationMissing,
	})
	if err != nil {
		return err
	}
	declared := hub.New(ctx, kinds)
	mgr, err := newManager(config, o, declared, kinds, certs)
	if err != nil {
		return fmt.Errorf("create the manager: %w", err)
	}
	declared.Open = hub.Caches(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
	})
	c := cluster.New(mgr, cluster.Options{ //nolint:contextcheck // a policy is set aside after the request that found it has ended
		Namespace: o.Namespace, Clock: serverClock, Kinds: kinds, HoldSteps: hold.Times{Step: o.HoldStep, Guard: o.HoldGuard}, Hub: declared,
	})
	guard := checks.NewGuard(config.Host, o.DenyCIDRs...)
	// Queries of AlterShield Server have clients of their own: they must not open the circuit breaker of checks.
	clients := func() *endpoint.Clients {
		return endpoint.NewClients(c.Live, c.Clock, endpoint.Guarded(endpoint.Guard(guard)))
	}
	if err := controllers.Setup(ctx, mgr, c, controllers.Options{
		Server: server, MetricsTogether: !o.MetricsByNamespace, Guard: guard, Clients: clients(), Interceptor: certs,
	}); err != nil {
		return err
	}
	client, clusterUID := server.Connection()
	if err := errors.Join(
		webhooks.SetupWithManager(mgr, webhooks.Options{
			Kinds: kinds, Self: self, Clock: serverClock, Pod: o.Pod, Log: ctrl.Log.WithName("webhooks"),
			Settings: c.InForceRequested, Past: c.Past, Stored: webhooks.StoredBy(c.View), Policies: webhooks.PoliciesBy(c.View), Rules: c.Rules,
			Hold: c.InForceAtAdmission, HoldSteps: c.HoldSteps,
			Checker: webhooks.NewServerCheck(client, webhooks.ServerCheckOptions{Registration: o.Registration, Cluster: string(clusterUID)}),
		}),
		routers.SetupWithManager(mgr, routers.Options{
			Address: o.CallbackAddress, CertPath: o.CallbackCertPath, Tokens: tokens, StandAlone: server == nil, View: c.View, Clock: c.Clock,
			Metrics:     &verify.Metrics{View: c.View, Clock: c.Clock, Clients: clients(), Endpoint: o.MetricsEndpoint},
			MetricsFrom: o.MetricsFrom, Rollbacks: c, NoPut: !o.CallbackPut, Log: ctrl.Log.WithName("callbacks"), OnCallback: metrics.Callback,
		}),
		certs.SetupWithManager(mgr),
		(&runnable.RollbackScanner{Cluster: c}).SetupWithManager(mgr),
		mgr.Add(&runnable.Defaults{Client: mgr.GetClient(), Namespace: o.Namespace, Log: ctrl.Log.WithName("defaults")}),
		addServerTasks(mgr, c, client, o),
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("webhooks", mgr.GetWebhookServer().StartedChecker()),
		mgr.AddReadyzCheck("caches", controllers.CachesSynced(mgr)),
	); err != nil {
		return err
	}
	ctrl.Log.Info("running as", "identity", self)
	return mgr.Start(ctx)
}

// addServerTasks adds the tasks that concern AlterShield Server and do not depend on releases.
// Without a server it adds only the note about the admission check.
func addServerTasks(mgr ctrl.Manager, c *cluster.Cluster, server *altershield.Client, o *options.Options) error {
	note := &runnable.AdmissionNote{InForce: c.InForceIn, Namespace: o.Namespace, Log: ctrl.Log.WithName("webhooks")}
	if server == nil {
		return mgr.Add(note)
	}
	note.Scene = o.AdmissionScene
	return errors.Join(mgr.Add(note), mgr.Add(&runnable.Heartbeat{
		Ask: server.Heartbeat, Pod: o.Pod, Live: mgr.GetAPIReader(), Client: mgr.GetClient(), Recorder: c.Recorder,
		Clock: clock.RealClock{}, Log: ctrl.Log.WithName("server"),
	}))
}

func newManager(
	config *rest.Config, o *options.Options, declared *hub.Hub, kinds *workload.Registry, certs *certificates.Certificates,
) (ctrl.Manager, error) {
	return ctrl.NewManager(config, ctrl.Options{
		Scheme:    controllers.NewScheme(),
		Cache:     controllers.CacheOptions(kinds, o.Namespace),
		Client:    controllers.ClientOptions(),
		NewClient: declared.NewClient,
		WebhookServer: webhooks.NewServer(webhooks.ServerOptions{
			Port: o.WebhookPort, GetCertificate: certs.GetCertificate(), Log: ctrl.Log.WithName("webhooks"),
			CertDir: o.Certificates.Dir, CertName: o.Certificates.CertName, KeyName: o.Certificates.KeyName,
		}),
		Metrics: metricsserver.Options{
			BindAddress: o.MetricsAddress, SecureServing: true, FilterProvider: filters.WithAuthenticationAndAuthorization,
		},
		HealthProbeBindAddress: o.HealthAddress,
		LeaderElection:         o.LeaderElect, LeaderElectionID: "altershield-operator",
		LeaderElectionNamespace: o.Namespace, LeaderElectionReleaseOnCancel: true,
	})
}
