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

package docs

import "context"

// productionStories has the plan of the document about production.
var productionStories = map[string]plan{
	"docs/tasks/run-in-production.md": {
		begin: (*story).standAlone,
		steps: []step{
			{
				command: "kubectl apply -k config/certmanager",
				before: func(s *story) {
					if err := s.cluster.InstallAddOnKinds(context.Background(), s.root); err != nil {
						s.t.Fatal(err)
					}
					s.removeWebhooks()
				},
				after: func(s *story) { s.startManager(false) },
			},
			{
				// The manager has a certificate of the test, so it did not create this Secret.
				command: "kubectl -n altershieldoperator-system delete secret altershieldoperator-webhook-server-cert",
				before: func(s *story) {
					s.do("kubectl -n %s create secret generic altershieldoperator-webhook-server-cert", system)
				},
			},
		},
	},
}
