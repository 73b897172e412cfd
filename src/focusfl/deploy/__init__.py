"""Set up and run a deployment across machines (docs/deploy.md).

setup         init, add, renew: write the folders of a deployment
certificates  keys, and the certificates that the deployment's own authority signs
config        hosts, ports and number of nodes: deploy.toml
operator      call the SuperLink with the operator's certificate
registry      register, list and revoke nodes
superlink     Flower's SuperLink, which limits replies and restarts its executor
runs          start a run and tell whether it finished
flower_app    the Flower app that `focusfl deploy run` submits
allowed_apps  a SuperNode that runs only the apps on its list
templates/    start scripts, nginx.conf and README files
"""
