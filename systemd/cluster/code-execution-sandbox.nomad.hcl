# code-execution-sandbox on Nomad: one server on each client node whose metadata
# say so, on the node's own containerd.
#
# It runs as root without isolation (raw_exec, which the node must allow): it
# speaks to containerd's socket, which is as much as root. Programs run beside it,
# in sandboxes that Nomad does not know and does not count. So choose nodes for it
# alone. They need containerd, runc, the binary, and the runtime image:
#
#   code-execution-sandbox image import - < runtime.tar
#   nomad var put nomad/jobs/code-execution-sandbox token=$(openssl rand -hex 32)
job "code-execution-sandbox" {
  type = "system"

  constraint {
    attribute = "${meta.code_execution_sandbox}"
    value     = "true"
  }

  update {
    max_parallel     = 1
    health_check     = "checks"
    min_healthy_time = "5s"
    healthy_deadline = "2m"
    auto_revert      = true
  }

  group "server" {
    network {
      port "http" {
        static = 8788
      }
    }

    service {
      name     = "code-execution-sandbox"
      port     = "http"
      provider = "nomad"

      # Whether calls are welcome. A server that waits for its image or for
      # containerd is alive all the same: no check_restart, which would end its
      # calls and cure nothing.
      check {
        type     = "http"
        path     = "/healthz"
        interval = "2s"
        timeout  = "4s"
      }
    }

    task "server" {
      driver      = "raw_exec"
      user        = "root"
      kill_signal = "SIGTERM"
      # The delay, the longest call, and the removal of what is prepared.
      kill_timeout = "150s"

      config {
        command = "/usr/local/bin/code-execution-sandbox"
        args    = ["serve", "--config", "${NOMAD_TASK_DIR}/config.toml"]
      }

      template {
        destination = "${NOMAD_TASK_DIR}/config.toml"
        data        = <<-CONFIG
          http_addr = ":{{ env "NOMAD_PORT_http" }}"
          auth_token_file = "{{ env "NOMAD_SECRETS_DIR" }}/token"
          # Load balancers hear of it within this time.
          shutdown_delay_seconds = 10
          shutdown_grace_seconds = 65
          [logging]
          format = "json"
          [containerd]
          # Never a private one: that would die with the task.
          address = "/run/containerd/containerd.sock"
        CONFIG
      }

      template {
        destination = "${NOMAD_SECRETS_DIR}/token"
        perms       = "0600"
        change_mode = "restart"
        data        = "{{ with nomadVar \"nomad/jobs/code-execution-sandbox\" }}{{ .token }}{{ end }}\n"
      }

      resources {
        cpu    = 500
        memory = 128
      }
    }
  }
}
