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
	"os"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/traas-stack/altershield-operator/controllers"
	"github.com/traas-stack/altershield-operator/internal/identity"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/options"
	"github.com/traas-stack/altershield-operator/internal/servertime"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/routers"
	"github.com/traas-stack/altershield-operator/runnable"
	"github.com/traas-stack/altershield-operator/webhooks"
)

// Set by the linker.
var (
	version = "dev"
	commit  = "unknown"
)

// +kubebuilder:rbac:groups="",namespace=altershieldoperator-system,resources=events,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=altershieldoperator-system,resources=leases,resourceNames=altershield-operator,verbs=get;update
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

func main() {
	o, err := options.Parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err == nil && o.PrintVersion:
		fmt.Printf("altershield-operator %s (commit %s)\n", version, commit)
		return
	case err == nil:
		ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.Log)))
		err = run(ctrl.SetupSignalHandler(), o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "altershield-operator:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options.Options) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the cluster (--kubeconfig, $KUBECONFIG or in-cluster): %w", err)
	}
	config.UserAgent = "altershield-operator/" + version
	self, err := identity.Self(ctx, config)
	if err != nil {
		return err
	}
	tokens := o.Tokens(func(err error) {
		ctrl.Log.WithName("token").Info("the token file was looked at", "file", o.TokenFile, "problem", fmt.Sprint(err))
	})
	server, err := controllers.Connect(ctx, config, controllers.ServerOptions{
		URL: o.ServerURL, Platform: o.Platform, Tokens: tokens, Tenant: o.Tenant, Scene: o.Scene, Phase: o.Phase, TargetType: o.TargetType,
	})
	if err != nil {
		return err
	}
	co := controllers.Options{Namespace: o.Namespace, Clock: clock.RealClock{}, ServerClock: servertime.Follow(config, clock.RealClock{}), Kind: workload.Deployment{}, Server: server}
	certificates := runnable.NewCertificates(runnable.CertificatesOptions{
		Dir: o.WebhookCertPath, CertName: o.WebhookCertName, KeyName: o.WebhookKeyName, Namespace: o.Namespace, Secret: o.WebhookCertSecret, Service: o.WebhookService, Validity: o.WebhookCertValidity,
		Mutating: o.MutatingConfiguration, Validating: o.ValidatingConfiguration,
		Clock: clock.RealClock{}, Log: ctrl.Log.WithName("certificates"), OnServe: metrics.WebhookCertificate,
	})
	webhookServer := webhook.NewServer(webhook.Options{
		Port: o.WebhookPort, CertDir: o.WebhookCertPath, CertName: o.WebhookCertName, KeyName: o.WebhookKeyName, TLSOpts: certificates.TLSOptions(),
	})
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:        controllers.NewScheme(),
		Cache:         controllers.CacheOptions(co),
		Client:        controllers.ClientOptions(),
		WebhookServer: webhookServer,
		Metrics: metricsserver.Options{
			BindAddress: o.MetricsAddress, SecureServing: true, FilterProvider: filters.WithAuthenticationAndAuthorization,
		},
		HealthProbeBindAddress: o.HealthAddress,
		LeaderElection:         o.LeaderElect, LeaderElectionID: "altershield-operator",
		LeaderElectionNamespace: o.Namespace, LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return fmt.Errorf("create the manager: %w", err)
	}
	if err := controllers.Setup(ctx, mgr, co); err != nil {
		return err
	}
	rollbacks := controllers.NewRollbacks(mgr, co)
	client, cluster := server.Connection()
	if err := webhooks.SetupWithManager(mgr, webhooks.Options{
		Self: self, Pod: o.Pod, Log: ctrl.Log.WithName("webhooks"), Settings: webhooks.CachedSettings(mgr.GetClient(), o.Namespace),
		Checker: webhooks.NewServerCheck(client, webhooks.ServerCheckOptions{
			Scene: o.AdmissionScene, Tenant: o.Tenant, Phase: o.Phase, TargetType: o.TargetType, Cluster: string(cluster),
		}),
	}); err != nil {
		return err
	}
	if err := routers.SetupWithManager(mgr, routers.Options{
		Address: o.CallbackAddress, CertPath: o.CallbackCertPath, Tokens: tokens, Kind: co.Kind, Clock: co.Clock,
		Rollbacks: rollbacks, Log: ctrl.Log.WithName("callbacks"), OnCallback: metrics.Callback,
	}); err != nil {
		return err
	}
	if err := errors.Join(
		certificates.SetupWithManager(ctx, mgr),
		(&runnable.RollbackScanner{Rollbacks: rollbacks}).SetupWithManager(mgr),
		mgr.Add(&runnable.Defaults{Client: mgr.GetClient(), Namespace: o.Namespace, Log: ctrl.Log.WithName("defaults")}),
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("webhooks", webhookServer.StartedChecker()),
		mgr.AddReadyzCheck("caches", controllers.CachesSynced(mgr)),
	); err != nil {
		return err
	}
	ctrl.Log.Info("starting", "version", version, "commit", commit, "identity", self, "namespace", o.Namespace, "server", o.ServerURL)
	return mgr.Start(ctx)
}
